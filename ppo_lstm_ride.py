"""RIDE: PPO-LSTM paid for changing what a learned encoder sees, less where it has been before in the same episode.

An encoder phi is trained by an inverse and a forward model, as in ppo_lstm_icm.py; the bonus is how far the step moves
phi, divided by the root of the episode's visits to where it leads: ||phi(o_t+1) - phi(o_t)|| / sqrt(N_ep(o_t+1)).
`diff ppo_lstm.py ppo_lstm_ride.py` shows the method and nothing else, `diff ppo_lstm_icm.py ppo_lstm_ride.py` the step
from Curiosity to RIDE.

    python ppo_lstm_ride.py                                        # ViZDoom MyWayHome-Sparse
    python ppo_lstm_ride.py --task very-sparse --hash-bits 12      # farther away, with coarser visits

Paper: Raileanu and Rocktaeschel, "RIDE: Rewarding Impact-Driven Exploration for Procedurally-Generated Environments",
ICLR 2020. Docs: docs/ride.md
"""

import math
import os
import random
from dataclasses import dataclass
from typing import Annotated, Literal, Optional

from common.cpu import at_most_threads, keep_freed_memory  # before torch
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions.categorical import Categorical
from tqdm import tqdm

from common.chained_lstm import chained_lstm
from common.checkpoints import Checkpoints, require_finite
from common.episode_log import EpisodeLog
from common.flags import Count, Finite, LearningRate, Name, NotNegative, OnlyWith, Positive, Seed, Share, Within
from common.flags import check_memory, parse_args, refuse
from common.habitat import Habitat
from common.memory_corridor import MemoryCorridor
from common.my_way_home import MyWayHome
from common.noisy_tv import NoisyTV
from common.pictures import draw_pictures
from common.run_folder import RunFolder
from common.running_stats import MovingMean
from common.stop_signal import StopOnSignal
from common.stopwatch import Stopwatch
from common.video import EpisodeVideos
from common.visitation import VisitCounts

# ---- method: imports ----
from common.frame_keys import SimHash, exact_keys

# ---- end method ----


@dataclass
class Args:
    exp_name: Name = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment, part of the run folder's name"""
    seed: Seed = 1
    """seed of the weights, the policy's samples and the environments"""
    torch_deterministic: bool = True
    """ask cuDNN for deterministic kernels"""
    cuda: bool = True
    """use a GPU if there is one"""
    track: bool = False
    """send the logs to Weights and Biases as well (pip install wandb)"""
    wandb_project_name: Annotated[str, OnlyWith(track=True)] = "just-cluster-it"
    """the project's name at Weights and Biases"""
    wandb_entity: Annotated[Optional[str], OnlyWith(track=True)] = None
    """the team at Weights and Biases"""
    capture_video: bool = False
    """write episodes 1, 8, 27, ..., 1000, 2000, ... of the first environment to the run folder as videos"""
    save_model: bool = False
    """write the final weights of the agent to the run folder as agent.pt"""
    checkpoint_every: Count = 10
    """iterations between two checkpoints"""
    resume: Optional[str] = None
    """folder of the run to go on with; its flags are the defaults, what is typed again changes"""
    run_dir: Optional[str] = None
    """the run's folder, instead of a new one in runs; if a run has begun there it goes on, as with --resume"""

    env: Literal["vizdoom", "habitat", "memory"] = "vizdoom"
    """ViZDoom's MyWayHome, a scene in Habitat, or a corridor that needs memory but no simulator"""
    task: Annotated[Literal["dense", "sparse", "very-sparse"], OnlyWith(env="vizdoom")] = "sparse"
    """where MyWayHome's player starts: anywhere, far from the armour, farther"""
    scene: Annotated[Optional[str], OnlyWith(env="habitat")] = None
    """Habitat's scene, a file such as house.glb [default: Replica's apartment_0 in scenes-dir]"""
    scenes_dir: Annotated[Optional[str], OnlyWith(env="habitat", scene=None)] = None
    """folder with the Replica download [default: $HABITAT_SCENES_DIR, or else data/scene_datasets]"""
    noisy_tv: bool = False
    """append a frame of fresh uniform noise to the right of every frame (Section 4.4 of the paper)"""
    num_envs: Optional[Annotated[int, Within(1, 1024)]] = None
    """parallel environments [default: 32, in Habitat 1]"""
    stagger_episodes: Annotated[bool, OnlyWith(env=("vizdoom", "habitat"))] = True
    """end the first episodes early, each environment's at another step, so that they are never in step"""

    total_timesteps: Count = 500_000
    """agent steps in all environments together; a step is one decision, four tics of Doom"""
    target_return: Optional[Finite] = None
    """end the run when the mean return of the last 100 episodes exceeds this"""
    learning_rate: LearningRate = 5e-4
    """learning rate of Adam (1e-4 in the paper)"""
    anneal_lr: bool = False
    """let the learning rate fall linearly to zero"""
    num_steps: Optional[Count] = None
    """steps per environment in each rollout (256 in the authors' code) [default: 64, in Habitat 256]"""
    gamma: Share = 0.995
    """discount (0.99 in the paper)"""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation"""
    bootstrap_timeouts: bool = True
    """an episode cut by its time limit is worth the value of its last frame; off: nothing, as in the authors' code"""
    bptt_length: Count = 64
    """steps through which the LSTM is trained, at most num-steps"""
    minibatch_size: Count = 512
    """frames per minibatch, in sequences of bptt-length (256 in the paper)"""
    update_epochs: Count = 4
    """passes over each rollout"""
    norm_adv: bool = False
    """scale the advantages of a rollout to mean 0 and deviation 1 (not in the paper)"""
    clip_coef: Positive = 0.2
    """clipping of the policy's ratio (0.1 in the paper)"""
    clip_vloss: bool = False
    """clip the value's change by clip-coef as well (in the paper)"""
    ent_coef: NotNegative = 0.005
    """weight of the entropy"""
    vf_coef: NotNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """largest norm of the gradient"""
    ext_coef: NotNegative = 20.0
    """weight of the extrinsic reward (1 in the paper)"""
    int_coef: NotNegative = 0.01
    """weight of the intrinsic reward (0.1 in the paper, where it is not normalised)"""
    norm_bonus: bool = True
    """divide the intrinsic reward by its moving mean, so that a step earns int-coef on average (not in the paper)"""

    # ---- method: args ----
    forward_coef: NotNegative = 0.2
    """weight of the forward model's loss (as in ppo_lstm_icm.py; 10 in the authors' MiniGrid)"""
    inverse_coef: NotNegative = 0.8
    """weight of the inverse model's loss (as in ppo_lstm_icm.py; 0.1 in the authors' MiniGrid)"""
    dynamics_learning_rate: LearningRate = 1e-3
    """learning rate of Adam for phi and both models (1e-4 in the authors' code, with more updates)"""
    dynamics_minibatch_size: Count = 256
    """transitions per minibatch of phi and both models (ours)"""
    count_key: Literal["hash", "frame"] = "hash"
    """what is visited: a hash of the frame, or the very same frame (in the authors' code)"""
    hash_bits: Annotated[int, Within(1, 62), OnlyWith(count_key="hash")] = 16
    """bits of the hash; fewer make more frames alike (ours)"""
    # ---- end method ----


def check(args):
    """Ends the program with one sentence if the sizes do not fit together."""
    if args.num_steps % args.bptt_length:
        refuse(f"--num-steps {args.num_steps} must be a multiple of --bptt-length {args.bptt_length}.")
    batch_size = args.num_envs * args.num_steps
    if batch_size < 2:
        refuse("--num-steps 1 with --num-envs 1 is a rollout of one frame: type more of one of them.")
    if args.total_timesteps < batch_size:
        refuse(f"--total-timesteps {args.total_timesteps} is less than one rollout: type at least {batch_size}.")
    num_bytes = 25_000 * batch_size + 200_000 * min(batch_size, args.minibatch_size)  # roughly
    check_memory(num_bytes, f"A rollout of {batch_size} frames does not fit into memory: type fewer --num-steps.")


def make_envs(args):
    """Simulators start at the first reset, so everything that can be refused has been refused by then."""
    if args.env == "vizdoom":
        envs = MyWayHome(args.task, args.num_envs)
    elif args.env == "habitat":
        envs = Habitat(args.scene, args.scenes_dir, args.num_envs, args.seed)
    else:
        envs = MemoryCorridor(args.num_envs)
    return NoisyTV(envs) if args.noisy_tv else envs


def to_obs(frames, device):
    """(N, H, W, 3) frames of any size -> (N, 3, 42, 42) uint8"""
    frames = torch.from_numpy(frames).permute(0, 3, 1, 2)
    return F.interpolate(frames, (42, 42), mode="bilinear", antialias=True).to(device)


class Agent(nn.Module):
    def __init__(self, num_actions):
        super().__init__()
        layers = []
        for channels in (3, 32, 32, 32):
            layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ELU(inplace=True)]
        self.network = nn.Sequential(*layers, nn.Flatten()).to(memory_format=torch.channels_last)
        # the paper's recurrence: both cells see the same 288 features, the second goes on from the first one's state
        self.lstm_1 = nn.LSTMCell(288, 256)
        self.lstm_2 = nn.LSTMCell(288, 256)
        self.actor = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, num_actions))
        self.critic = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 1))

    def initial_state(self, num_envs, device):
        return torch.zeros(num_envs, 256, device=device), torch.zeros(num_envs, 256, device=device)

    def get_states(self, x, lstm_state, done):
        # x (T, N, 3, 42, 42), done (T, N), lstm_state 2 x (N, 256); done[t] empties the state *before* step t
        frames = x.flatten(0, 1).to(torch.float32, memory_format=torch.channels_last) / 255
        features = self.network(frames).view(*x.shape[:2], -1)
        return chained_lstm(features, done, lstm_state, self.lstm_1, self.lstm_2)

    def get_policy(self, hidden):  # (..., 256) -> a distribution over actions (...)
        return Categorical(logits=self.actor(hidden), validate_args=False)

    def get_value(self, hidden):  # (..., 256) -> (...)
        return self.critic(hidden).squeeze(-1)


def compute_advantages(rewards, values, next_values, ends, gamma, gae_lambda):
    """Generalised advantage estimation, all (T, N); next_values[t]: the value of what step t led to, 0 after death."""
    advantages = torch.zeros_like(rewards)
    lastgaelam = 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantages[t] = lastgaelam = delta + gamma * gae_lambda * (1 - ends[t]) * lastgaelam
    return advantages


# ---- method: modules ----
class Dynamics(nn.Module):
    """phi, and the two models that train it. Equation numbers are those of docs/ride.md."""

    def __init__(self, num_actions):
        super().__init__()
        self.num_actions = num_actions
        layers = []
        for channels in (3, 32, 32, 32):
            layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ELU(inplace=True)]
        self.encoder = nn.Sequential(*layers, nn.Flatten())
        self.inverse_model = nn.Sequential(nn.Linear(2 * 288, 256), nn.ReLU(), nn.Linear(256, num_actions))
        self.forward_model = nn.Sequential(nn.Linear(288 + num_actions, 256), nn.ReLU(), nn.Linear(256, 288))
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
        self.encoder.to(memory_format=torch.channels_last)

    def encode(self, frames):
        """(1) frames (..., 3, 42, 42) uint8 -> phi (..., 288)"""
        features = []
        for chunk in frames.flatten(0, -4).split(256):  # small enough for the activations to stay in the cache
            features.append(self.encoder(chunk.to(torch.float32, memory_format=torch.channels_last) / 255))
        return torch.cat(features).view(*frames.shape[:-3], 288)

    def inverse_logits(self, features, next_features):
        """(2) which action led from phi(o_t) to phi(o_t+1)? (..., num_actions)"""
        return self.inverse_model(torch.cat([features, next_features], -1))

    def forward_errors(self, features, actions, next_features):
        """(3) half the squared distance (...) of the predicted to the true phi(o_t+1), which is not held fixed"""
        one_hot_actions = F.one_hot(actions, self.num_actions).float()
        predictions = self.forward_model(torch.cat([features, one_hot_actions], -1))
        return 0.5 * (predictions - next_features).square().sum(-1)


@torch.no_grad()
def rollout_features(dynamics, obs, next_observations, ends):
    """phi(o_t) and phi(o_t+1), both (T, N, 288); only where an episode ends is o_t+1 not the next row's o_t."""
    features = dynamics.encode(obs)
    next_features = torch.cat([features[1:], dynamics.encode(next_observations[-1:])])
    next_features[ends.bool()] = dynamics.encode(next_observations[ends.bool()])
    return features, next_features


class EpisodicCounts:
    """(6) N_ep, for each environment by itself. A checkpoint does not need it: a resumed run starts fresh episodes."""

    def __init__(self, num_envs):
        self.visits = [{} for _ in range(num_envs)]  # key -> visits in the episode so far

    def visit(self, keys, next_keys, dones):
        """keys of o_t and of o_t+1, T lists of N; dones (T, N): o_t starts an episode -> N_ep(o_t+1) (T, N)"""
        counts = torch.zeros(dones.shape)
        for t, row in enumerate(dones.tolist()):
            for env, done in enumerate(row):
                if done:
                    self.visits[env] = {keys[t][env]: 1}  # the agent has been where it starts
                key = next_keys[t][env]
                counts[t, env] = self.visits[env][key] = self.visits[env].get(key, 0) + 1
        return counts


# ---- end method ----


if __name__ == "__main__":
    args = parse_args(Args, __doc__)
    if args.num_envs is None:
        args.num_envs = 1 if args.env == "habitat" else 32
    if args.num_steps is None:
        args.num_steps = 256 if args.env == "habitat" else 64
    args.bptt_length = min(args.bptt_length, args.num_steps)
    check(args)
    batch_size = args.num_envs * args.num_steps
    num_sequences = batch_size // args.bptt_length
    num_minibatches = min(num_sequences, math.ceil(batch_size / args.minibatch_size))

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    keep_freed_memory()

    envs = make_envs(args)
    agent = Agent(envs.single_action_space.n).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-8, fused=True)
    visits, episode_log, bonus_mean = VisitCounts(envs), EpisodeLog(args.num_envs), MovingMean(momentum=0.8)
    # what a checkpoint holds besides the random states: anything with state_dict() and load_state_dict()
    saved = dict(agent=agent, optimizer=optimizer, visits=visits, episode_log=episode_log, bonus_mean=bonus_mean)

    # ---- method: init ----
    dynamics = Dynamics(envs.single_action_space.n).to(device)
    dynamics_optimizer = torch.optim.Adam(dynamics.parameters(), lr=args.dynamics_learning_rate)
    hasher = SimHash(args.hash_bits).to(device)
    count_keys = hasher if args.count_key == "hash" else exact_keys
    episodic_counts = EpisodicCounts(args.num_envs)
    saved |= {"dynamics": dynamics, "dynamics_optimizer": dynamics_optimizer, "hasher": hasher}
    # ---- end method ----

    stop = StopOnSignal()
    run = RunFolder(args)
    checkpoints = Checkpoints(run.path, saved)
    global_step = checkpoints.load(device, is_expected=args.resume is not None)
    run.start_logging(global_step, device)
    # a resumed run starts fresh episodes, not the first ones again
    next_frames, infos = envs.reset(seed=args.seed + global_step, options={"stagger": args.stagger_episodes})
    videos = EpisodeVideos(run.path / "videos", next_frames[0]) if args.capture_video else None

    # ALGO LOGIC: storage
    obs = torch.zeros((args.num_steps, args.num_envs, 3, 42, 42), dtype=torch.uint8, device=device)
    next_observations = torch.zeros_like(obs)  # what each step led to: at its end the old episode's last frame
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.int64, device=device)
    hiddens = torch.zeros((args.num_steps, args.num_envs, 256), device=device)  # what the actor and the critic see
    rewards = torch.zeros((args.num_steps, args.num_envs), device=device)
    dones = torch.zeros((args.num_steps, args.num_envs), device=device)  # dones[t]: obs[t] is the first of an episode
    final_values = torch.zeros((args.num_steps, args.num_envs), device=device)  # after a time-out, else 0
    positions = torch.zeros((args.num_steps, args.num_envs, 2))  # where obs was seen
    next_positions = torch.zeros_like(positions)  # where each step led to
    initial_lstm_states = torch.zeros((args.num_steps // args.bptt_length, 2, args.num_envs, 256), device=device)
    next_obs = to_obs(next_frames, device)
    next_done = torch.ones(args.num_envs, device=device)
    next_lstm_state = agent.initial_state(args.num_envs, device)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit=" steps", mininterval=1)

    while True:
        is_solved = args.target_return is not None and episode_log.has_reached(args.target_return)
        is_last = is_solved or stop.requested or global_step + batch_size > args.total_timesteps
        if (is_last or global_step // batch_size % args.checkpoint_every == 0) and global_step != checkpoints.last_step:
            checkpoints.save(global_step, is_last)
            run.log_images(draw_pictures(saved, args, global_step), global_step)
        if is_last:
            break

        watch = Stopwatch()
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = (1 - global_step / args.total_timesteps) * args.learning_rate

        final_values.zero_()
        for step in range(args.num_steps):
            if stop.requested:
                break
            frames = next_frames
            obs[step], dones[step] = next_obs, next_done
            positions[step] = torch.from_numpy(infos["position"])
            if step % args.bptt_length == 0:
                initial_lstm_states[step // args.bptt_length] = torch.stack(next_lstm_state)

            # ALGO LOGIC: action logic; log-probabilities and values follow after the rollout, all at once
            with torch.inference_mode(), at_most_threads(args.num_envs):
                hidden, next_lstm_state = agent.get_states(next_obs[None], next_lstm_state, next_done[None])
                actions[step] = agent.get_policy(hidden[0]).sample()
            hiddens[step] = hidden[0]
            watch.lap("policy")

            # TRY NOT TO MODIFY: execute the game
            next_frames, reward, terminations, truncations, infos = envs.step(actions[step].cpu().numpy())
            ended = terminations | truncations
            next_obs, next_done = to_obs(next_frames, device), torch.from_numpy(ended).float().to(device)
            rewards[step] = torch.from_numpy(reward)
            next_observations[step], next_positions[step] = next_obs, torch.from_numpy(infos["position"])
            if ended.any():
                next_observations[step, ended] = to_obs(infos["final_obs"][ended], device)
                next_positions[step, ended] = torch.from_numpy(infos["final_info"]["position"][ended])
            if args.bootstrap_timeouts and truncations.any():
                # a time-out is no death: the value of the true last frame, with the LSTM state that led to it
                with torch.inference_mode():
                    same_episode = torch.zeros_like(next_done)[None]
                    hidden, _ = agent.get_states(next_observations[step][None], next_lstm_state, same_episode)
                    final_values[step] = agent.get_value(hidden[0]) * torch.from_numpy(truncations).to(device)
            # ---- method: step ----
            # ---- end method ----
            if videos:
                videos.add(next_frames[0], ended[0], infos)
            watch.lap("env")
            progress.update(args.num_envs)
        if stop.requested:
            continue  # to the checkpoint; the unfinished rollout is dropped
        global_step += batch_size
        visits.add(next_positions.flatten(0, 1).numpy())

        # ALGO LOGIC: rewards; ends[t]: step t was the last of its episode
        ends = torch.cat([dones[1:], next_done[None]])
        intrinsic_rewards = torch.zeros_like(rewards)
        # ---- method: reward ----
        # the bonus of a transition comes from phi as it was while it was made
        features, next_features = rollout_features(dynamics, obs, next_observations, ends)
        impact = (next_features - features).norm(dim=-1)
        counts = episodic_counts.visit(count_keys(obs), count_keys(next_observations), dones).to(device)
        intrinsic_rewards = impact / counts.sqrt()  # (7)
        # ---- end method ----
        bonus_mean.update(intrinsic_rewards)
        bonus_scale = args.int_coef / max(bonus_mean.mean, 1e-8) if args.norm_bonus else args.int_coef
        total_rewards = args.ext_coef * rewards + bonus_scale * intrinsic_rewards
        episode_log.add(rewards, intrinsic_rewards, ends)
        watch.lap("bonus")

        # values of the rollout; bootstrap value if not done
        with torch.no_grad():
            values, logprobs = agent.get_value(hiddens), agent.get_policy(hiddens).log_prob(actions)
            next_hidden, _ = agent.get_states(next_obs[None], next_lstm_state, next_done[None])
            next_values = torch.cat([values[1:], agent.get_value(next_hidden)])
        next_values = torch.where(ends.bool(), final_values, next_values)
        advantages = compute_advantages(total_rewards, values, next_values, ends, args.gamma, args.gae_lambda)
        returns = advantages + values
        advantage_std = advantages.std()
        if args.norm_adv:  # over the whole rollout: a minibatch is a few sequences, too alike for a mean of their own
            advantages = (advantages - advantages.mean()) / (advantage_std + 1e-8)

        # cut the rollout into sequences: (T, N, ...) -> (T / L, L, N, ...) -> (L, T / L, N, ...) -> (L, S, ...)
        def sequences(x):
            x = x.unflatten(0, (-1, args.bptt_length)).transpose(0, 1)
            return x.reshape(args.bptt_length, num_sequences, *x.shape[3:])

        b_obs, b_actions, b_logprobs, b_dones = map(sequences, (obs, actions, logprobs, dones))
        b_advantages, b_returns, b_values = map(sequences, (advantages, returns, values))
        b_lstm_states = initial_lstm_states.transpose(0, 1).flatten(1, 2)  # (T / L, 2, N, 256) -> (2, S, 256)

        # Optimizing the policy and value network
        losses = []
        for epoch in range(args.update_epochs):
            for mb_inds in torch.randperm(num_sequences).to(device).tensor_split(num_minibatches):
                mb_lstm_state = tuple(b_lstm_states[:, mb_inds])
                hidden, _ = agent.get_states(b_obs[:, mb_inds], mb_lstm_state, b_dones[:, mb_inds])
                policy, newvalue = agent.get_policy(hidden), agent.get_value(hidden)
                logratio = policy.log_prob(b_actions[:, mb_inds]) - b_logprobs[:, mb_inds]
                ratio = logratio.exp()

                # Policy loss
                mb_advantages = b_advantages[:, mb_inds]
                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()

                # Value loss
                v_loss = (newvalue - b_returns[:, mb_inds]) ** 2
                if args.clip_vloss:
                    v_change = torch.clamp(newvalue - b_values[:, mb_inds], -args.clip_coef, args.clip_coef)
                    v_loss = torch.max(v_loss, (b_values[:, mb_inds] + v_change - b_returns[:, mb_inds]) ** 2)
                v_loss = v_loss.mean()

                entropy_loss = policy.entropy().mean()
                loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

                with torch.no_grad():
                    # calculate approx_kl http://joschu.net/blog/kl-approx.html
                    old_approx_kl = (-logratio).mean()
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfrac = ((ratio - 1).abs() > args.clip_coef).float().mean()
                    if not losses:
                        first_ratio_error = (ratio - 1).abs().max()  # 0: the update recomputes what the rollout did
                    losses.append(
                        torch.stack([v_loss, pg_loss, entropy_loss, old_approx_kl, approx_kl, clipfrac, grad_norm])
                    )

        # ---- method: update ----
        # one pass over the transitions, after their bonuses are paid
        all_obs, all_actions, all_next_obs = obs.flatten(0, 1), actions.flatten(0, 1), next_observations.flatten(0, 1)
        dynamics_losses = []
        for mb_inds in torch.randperm(batch_size).to(device).split(args.dynamics_minibatch_size):
            features, next_features = dynamics.encode(all_obs[mb_inds]), dynamics.encode(all_next_obs[mb_inds])
            logits = dynamics.inverse_logits(features, next_features)
            inverse_loss = F.cross_entropy(logits, all_actions[mb_inds])
            forward_loss = dynamics.forward_errors(features, all_actions[mb_inds], next_features).mean() / 288
            dynamics_loss = args.inverse_coef * inverse_loss + args.forward_coef * forward_loss  # (4)
            dynamics_optimizer.zero_grad()
            dynamics_loss.backward()
            dynamics_optimizer.step()
            inverse_accuracy = (logits.argmax(-1) == all_actions[mb_inds]).float().mean()
            dynamics_losses.append(torch.stack([forward_loss, inverse_loss, inverse_accuracy]).detach())
        require_finite(dynamics_loss=torch.stack(dynamics_losses))
        # ---- end method ----
        watch.lap("update")

        # TRY NOT TO MODIFY: record what happened; losses are means over all minibatches
        loss_names = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")
        require_finite(reward=rewards, bonus=intrinsic_rewards, **dict(zip(loss_names, torch.stack(losses).T)))
        metrics = {
            **episode_log.metrics(),
            "charts/learning_rate": optimizer.param_groups[0]["lr"],
            **{f"losses/{name}": value.item() for name, value in zip(loss_names, torch.stack(losses).mean(0))},
            "losses/first_ratio_error": first_ratio_error.item(),
            "losses/explained_variance": 1 - ((returns - values).var() / returns.var()).item(),
            "losses/advantage_std": advantage_std.item(),
            "exploration/unique_cells": visits.unique_cells(),
            "exploration/coverage": visits.coverage(),
            "exploration/visitation_entropy": visits.entropy(),
            "intrinsic/reward_mean": intrinsic_rewards.mean().item(),
            "intrinsic/reward_std": intrinsic_rewards.std().item(),
            "intrinsic/reward_max": intrinsic_rewards.max().item(),
        }
        # ---- method: log ----
        forward_loss, inverse_loss, inverse_accuracy = torch.stack(dynamics_losses).mean(0).tolist()
        metrics["losses/forward_loss"] = forward_loss
        metrics["losses/inverse_loss"] = inverse_loss
        metrics["losses/inverse_accuracy"] = inverse_accuracy
        metrics["intrinsic/episodic_count_mean"] = counts.mean().item()
        # ---- end method ----
        run.log(metrics, global_step, watch.timings(batch_size))
        summary = f"coverage {metrics['exploration/coverage']:.0%}"
        if metrics["charts/episodes"]:
            summary += f", return {metrics['charts/episodic_return']:.2f}, success {metrics['charts/success']:.0%}"
        progress.set_postfix_str(summary)

    progress.close()
    envs.close()
    run.close(finished=not stop.requested)
    if args.save_model:
        checkpoints.save_model(agent)
    if is_solved:
        print(f"After {global_step:,} steps the last 100 episodes return more than {args.target_return} on average.")
    stop.exit_if_requested()
