"""Every flag of the learner changes what its help says. The flags of the methods are tested with the methods."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from common.my_way_home import MyWayHome

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--total-timesteps", 256]


@pytest.fixture
def run(train_here):
    return lambda *flags: train_here("ppo_lstm_cells.py", *SMALL, *flags)


def test_sizes(run):
    variables = run(
        "--num-envs", 3, "--num-steps", 24, "--bptt-length", 8, "--minibatch-size", 20, "--update-epochs", 3
    )
    assert variables["obs"].shape[:2] == (24, 3)
    assert variables["b_obs"].shape[:2] == (8, 9)
    # 72 frames in minibatches of about 20: 4 of 2 or 3 sequences, three times
    assert len(variables["losses"]) == 12
    assert run()["args"].bptt_length == 32, "never longer than a rollout"


def test_the_sequences_of_an_epoch_are_all_frames_once(run, monkeypatch):
    permutations = []
    randperm = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda n: permutations.append(randperm(n)) or permutations[-1])
    variables = run("--num-envs", 5, "--minibatch-size", 64, "--bptt-length", 16, "--total-timesteps", 160)
    assert [sorted(order.tolist()) for order in permutations] == [list(range(10))] * 4
    # sequence s starts where the rollout has step 16 * (s // 5) of environment s % 5
    for s in range(10):
        steps = slice(16 * (s // 5), 16 * (s // 5) + 16)
        assert torch.equal(variables["b_obs"][:, s], variables["obs"][steps, s % 5])
        assert torch.equal(variables["b_actions"][:, s], variables["actions"][steps, s % 5])


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.95), (0.99, 0.5)])
def test_discounts(run, gamma, gae_lambda):
    variables = run("--gamma", gamma, "--gae-lambda", gae_lambda)
    rewards, values, next_values, ends = (variables[n] for n in ("total_rewards", "values", "next_values", "ends"))
    advantages = torch.zeros(33, 4)
    for t in reversed(range(32)):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantages[t] = delta + gamma * gae_lambda * (1 - ends[t]) * advantages[t + 1]
    torch.testing.assert_close(variables["returns"], advantages[:-1] + values)


def test_norm_adv(run):
    off, on = run("--no-norm-adv"), run("--norm-adv")
    torch.testing.assert_close(off["advantages"], off["returns"] - off["values"])
    assert abs(on["advantages"].mean()) < 1e-5
    assert on["advantages"].std() == pytest.approx(1, abs=1e-4)


def test_coefficients_of_the_reward(run):
    for flags, scale in ((["--no-norm-bonus"], 1), ([], None)):
        variables = run("--int-coef", 0.3, "--ext-coef", 7, *flags)
        scale = scale or 1 / variables["bonus_mean"].mean
        expected = 7 * variables["rewards"] + 0.3 * scale * variables["intrinsic_rewards"]
        torch.testing.assert_close(variables["total_rewards"], expected)


def weights(variables):
    return torch.cat([parameter.flatten() for parameter in variables["agent"].parameters()]).detach()


@pytest.mark.parametrize(
    "flags",
    [
        ["--clip-coef", 0.001],
        ["--clip-vloss", "--clip-coef", 0.001],
        ["--ent-coef", 1],
        ["--vf-coef", 3],
        ["--max-grad-norm", 0.001],
        ["--learning-rate", 1e-3],
        ["--anneal-lr"],
        ["--seed", 2],
    ],
    ids=lambda flags: flags[0],
)
def test_the_update_depends_on(flags, run):
    assert not torch.equal(weights(run()), weights(run(*flags)))


def test_the_losses_are_what_they_say(run):
    """One minibatch, one epoch, no movement: all terms can be recomputed from the rollout."""
    flags = ["--minibatch-size", 128, "--update-epochs", 1, "--learning-rate", 1e-20, "--total-timesteps", 128]
    variables = run(*flags, "--norm-adv")
    metrics, agent = variables["metrics"], variables["agent"]
    logits = agent.actor(variables["hiddens"]).detach()
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean().item()
    assert metrics["losses/entropy"] == pytest.approx(entropy, abs=1e-5)
    assert metrics["losses/value_loss"] == pytest.approx(
        F.mse_loss(variables["values"], variables["returns"]).item(), rel=1e-3
    )
    assert metrics["losses/policy_loss"] == pytest.approx(-variables["advantages"].mean().item(), abs=1e-4)
    assert metrics["losses/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_anneal_lr(run):
    variables = run("--anneal-lr", "--total-timesteps", 512)
    assert variables["optimizer"].param_groups[0]["lr"] == pytest.approx(5e-4 / 4)  # the last of four rollouts


def test_stagger_episodes_spreads_the_first_time_limits():
    envs = MyWayHome("sparse", 4, max_episode_steps=8)
    for stagger, expected in ((True, [8, 6, 4, 2]), (False, [8, 8, 8, 8])):
        envs.reset(seed=1, options={"stagger": stagger})
        lengths = np.zeros(4, int)
        for step in range(1, 11):
            *_, truncations, _ = envs.step(np.zeros(4, int))
            lengths[truncations & (lengths == 0)] = step
        assert lengths.tolist() == expected
    envs.reset(seed=1)
    assert not envs.episode_steps.any()
    envs.close()


def test_stagger_episodes_is_passed_on(train_here):
    flags = ["--num-envs", 2, "--num-steps", 8, "--total-timesteps", 16]
    assert train_here("ppo_lstm.py", *flags)["envs"].episode_steps.tolist() == [8, 262 + 8]
    assert train_here("ppo_lstm.py", *flags, "--no-stagger-episodes")["envs"].episode_steps.tolist() == [8, 8]
