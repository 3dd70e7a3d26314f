"""Just Cluster It: PPO-LSTM paid for visiting rare clusters of frozen features.

A Gaussian mixture clusters the embeddings e_t of a rollout; every cluster is looked up in a global table by cosine
similarity, and opens a new row where none reaches kappa; a step is paid ext_coef * r_t + int_coef / sqrt(rho_t), where
rho_t counts the visits to its cluster so far. `diff ppo_lstm.py ppo_lstm_jci.py` shows the method and nothing else.

    python ppo_lstm_jci.py                                   # ViZDoom MyWayHome-Sparse, random features
    python ppo_lstm_jci.py --task very-sparse --kappa 0.9    # farther away, with a finer table

Paper: Wagner and Harmeling, "Just Cluster It: An Approach for Exploration in High-Dimensions using Clustering and
Pre-Trained Representations", ICML 2024. Docs: docs/jci.md
"""

import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal, Optional

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads sleep instead of starving the simulators,
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # but stay awake between two operations of an update (GNU's OpenMP)

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions.categorical import Categorical
from tqdm import tqdm

from common.allocator import keep_freed_memory
from common.chained_lstm import chained_lstm
from common.habitat import Habitat
from common.memory_corridor import MemoryCorridor
from common.my_way_home import MyWayHome
from common.noisy_tv import NoisyTV
from common.run_folder import RunFolder, StopOnSignal, Stopwatch, parse_args
from common.video import EpisodeVideos
from common.visitation import VisitCounts

# ---- method: imports ----
import math

from common.bonus_log import BonusLog
from common.clustering import gmm_labels
from common.encoders import make_encoder

# ---- end method ----


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment, part of the run folder's name"""
    seed: int = 1
    """seed of the weights, the policy's samples and the environments"""
    torch_deterministic: bool = True
    """ask cuDNN for deterministic kernels"""
    cuda: bool = True
    """use a GPU if there is one"""
    track: bool = False
    """send the logs to Weights and Biases as well (pip install wandb)"""
    wandb_project_name: str = "just-cluster-it"
    """the project's name at Weights and Biases"""
    wandb_entity: Optional[str] = None
    """the team at Weights and Biases"""
    capture_video: bool = False
    """write episodes 1, 8, 27, ..., 1000, 2000, ... of the first environment to the run folder as videos"""
    save_model: bool = False
    """write the final weights of the agent to the run folder as agent.pt"""
    checkpoint_every: int = 10
    """iterations between two checkpoints"""
    resume: Optional[str] = None
    """folder of the run to go on with; its flags are the defaults, what is typed again changes"""

    env: Literal["vizdoom", "habitat", "memory"] = "vizdoom"
    """ViZDoom's MyWayHome, a scene in Habitat, or a corridor that needs memory but no simulator"""
    task: Literal["dense", "sparse", "very-sparse"] = "sparse"
    """where MyWayHome's player starts: anywhere, far from the armour, farther"""
    scene: Optional[str] = None
    """Habitat's scene, a file such as house.glb [default: Replica's apartment_0 in scenes-dir]"""
    scenes_dir: Optional[str] = None
    """folder with the Replica download [default: $HABITAT_SCENES_DIR, or else data/scene_datasets]"""
    noisy_tv: bool = False
    """append a frame of fresh uniform noise to the right of every frame (Section 4.4 of the paper)"""
    num_envs: Optional[int] = None
    """parallel environments [default: 32, in Habitat 1]"""

    total_timesteps: int = 2_000_000
    """agent steps in all environments together; a step is one decision, four tics of Doom"""
    learning_rate: float = 2.5e-4
    """learning rate of Adam (1e-4 in the paper)"""
    anneal_lr: bool = False
    """let the learning rate fall linearly to zero"""
    num_steps: int = 256
    """steps per environment in each rollout"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    bootstrap_timeouts: bool = True
    """an episode cut by its time limit is worth the value of its last frame; off: nothing, as in the authors' code"""
    bptt_length: int = 64
    """steps through which the LSTM is trained"""
    minibatch_size: Optional[int] = None
    """frames per minibatch, in sequences of bptt-length (256 in the paper) [default: 1024, or all if fewer]"""
    update_epochs: int = 4
    """passes over each rollout"""
    norm_adv: bool = True
    """scale the advantages of a rollout to mean 0 and deviation 1 (not in the paper)"""
    clip_coef: float = 0.1
    """clipping of the policy's ratio"""
    clip_vloss: bool = False
    """clip the value's change by clip-coef as well (in the paper)"""
    ent_coef: float = 0.02
    """weight of the entropy (0.005 in the paper, where advantages are not normalised)"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient"""
    ext_coef: float = 1.0
    """weight of the extrinsic reward"""
    reward_scale: float = 10.0
    """factor on all rewards (1 in the paper), so that the value function can resolve what is left of the bonus"""

    # ---- method: args ----
    encoder: Literal["random", "random-centred", "dino"] = "random"
    """frozen features: a random network, one that takes dark frames for alike, or DINOv2 (slow without a GPU)"""
    dino_model: str = "facebook/dinov2-small"
    """a vision model of the hub, such as facebook/dinov2-large, or a folder that save_pretrained wrote"""
    authors_preprocessing: bool = False
    """DINO sees the middle of the frame without ImageNet's normalisation, as in the authors' code"""
    int_coef: float = 0.1
    """weight of the bonus"""
    kappa: Optional[float] = None
    """a cluster less similar (cosine) to every row of the table opens a row [default: 0.8; Habitat, random: 0.9]"""
    num_clusters: Optional[int] = None
    """M, components of the mixture [default: 250 in a rollout, in Habitat 30; a tenth of the steps of an episode]"""
    cluster_scope: Literal["rollout", "episode"] = "rollout"
    """what is clustered together: the steps of all environments in a rollout, or each episode's by themselves"""
    episodic_clustering: bool = True
    """off: every embedding is a cluster of its own, the paper's ablation"""
    # ---- end method ----


def check(args):
    """Ends the program with one sentence if flags do not fit together."""
    num_frames = args.num_envs * args.num_steps
    for name in ("num_envs", "num_steps", "bptt_length", "minibatch_size", "update_epochs", "checkpoint_every"):
        if getattr(args, name) < 1:
            sys.exit(f"--{name.replace('_', '-')} must be at least 1.")
    if args.num_steps % args.bptt_length:
        sys.exit(f"--num-steps {args.num_steps} must be a multiple of --bptt-length {args.bptt_length}.")
    if args.minibatch_size % args.bptt_length or num_frames % args.minibatch_size:
        sys.exit(
            f"--minibatch-size {args.minibatch_size} must be a multiple of --bptt-length {args.bptt_length} and divide "
            f"num-envs x num-steps = {num_frames}; try --minibatch-size {args.bptt_length}."
        )
    if args.total_timesteps < num_frames:
        sys.exit(f"--total-timesteps {args.total_timesteps} is less than one rollout: type at least {num_frames}.")


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


def layer_init(layer):
    """Rows of length 1 in a random direction, as in the authors' code."""
    nn.init.normal_(layer.weight)
    layer.weight.data /= layer.weight.data.norm(dim=1, keepdim=True)
    nn.init.zeros_(layer.bias)
    return layer


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
        self.actor = nn.Sequential(layer_init(nn.Linear(256, 64)), nn.Tanh(), layer_init(nn.Linear(64, num_actions)))
        self.critic = nn.Sequential(layer_init(nn.Linear(256, 64)), nn.Tanh(), layer_init(nn.Linear(64, 1)))

    def initial_state(self, num_envs, device):
        return torch.zeros(num_envs, 256, device=device), torch.zeros(num_envs, 256, device=device)

    def get_states(self, x, lstm_state, done):
        # x (T, N, 3, 42, 42), done (T, N), lstm_state 2 x (N, 256); done[t] empties the state *before* step t
        frames = x.flatten(0, 1).to(torch.float32, memory_format=torch.channels_last) / 255
        features = self.network(frames).view(*x.shape[:2], -1)
        return chained_lstm(features, done, lstm_state, self.lstm_1, self.lstm_2)

    def get_value(self, x, lstm_state, done):
        hidden, _ = self.get_states(x, lstm_state, done)
        return self.critic(hidden).squeeze(-1)

    def get_action(self, hidden):
        return torch.multinomial(self.actor(hidden).softmax(-1), 1).squeeze(-1)  # (N, 256) -> (N,)

    def evaluate(self, hidden, action):  # (T, N, 256) and (T, N) -> log-probability, entropy, value, each (T, N)
        probs = Categorical(logits=self.actor(hidden), validate_args=False)
        return probs.log_prob(action), probs.entropy(), self.critic(hidden).squeeze(-1)


def compute_advantages(rewards, values, next_values, ends, gamma, gae_lambda):
    """Generalised advantage estimation, all (T, N); next_values[t]: the value of what step t led to, 0 after death."""
    advantages = torch.zeros_like(rewards)
    lastgaelam = 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantages[t] = lastgaelam = delta + gamma * gae_lambda * (1 - ends[t]) * lastgaelam
    return advantages


# ---- method: modules ----
class ClusterTable:
    """The global clusters, one row each, in order of birth. Equation numbers are those of docs/jci.md."""

    def __init__(self, kappa, embedding_size):
        self.kappa = kappa
        self.centres = torch.zeros(0, embedding_size)  # mu_global, scaled to length 1; a centre never moves
        self.counts = torch.zeros(0, dtype=torch.int64)  # lambda, the steps that fell into the row
        self.appearances = torch.zeros(0, dtype=torch.int64)  # the episodic clusters that were matched with the row
        self.births = torch.zeros(0, dtype=torch.int64)  # the global step at which the row was opened
        self.images = torch.zeros(0, 3, 42, 42)  # mean image
        self.positions = torch.zeros(0, 2)  # mean position

    def visit(self, embeddings, labels, global_step):
        """Match the clusters of an episode with the table, pay for its steps, grow and update the table.

        embeddings (T, D) and labels (T,) in order of time -> bonuses (T,) and the row of every step (T,)
        """
        # (2) the episodic clusters m = 1..M in order of first appearance: sizes n_m, centres mu_m
        _, first_steps, labels = np.unique(labels, return_index=True, return_inverse=True)
        labels = torch.from_numpy(first_steps.argsort().argsort()[labels])  # argsort twice: the rank of the first step
        sizes = torch.bincount(labels)
        sums = torch.zeros(len(sizes), embeddings.shape[1]).index_add_(0, labels, embeddings)
        centres = F.normalize(sums / sizes[:, None])  # (M, D)

        # (3) d_mk = cos(mu_m, mu_global_k), with room for the rows that these clusters will open
        num_rows, num_clusters = len(self.counts), len(sizes)
        similarity = np.empty((num_clusters, num_rows + num_clusters), dtype=np.float32)
        similarity[:, :num_rows] = (centres @ self.centres.T).numpy()
        counts = np.concatenate([self.counts.numpy(), np.zeros(num_clusters, dtype=np.int64)])
        matched_rows, base_counts, founders = [], [], []
        for m, size in enumerate(sizes.tolist()):
            k = similarity[m, :num_rows].argmax() if num_rows else 0  # (3) k*(m)
            if num_rows == 0 or similarity[m, k] < self.kappa:  # (4) like nothing before: a new row, with lambda = 0
                k, num_rows = num_rows, num_rows + 1
                similarity[:, k] = (centres @ centres[m]).numpy()
                founders.append(m)
            matched_rows.append(k)
            base_counts.append(counts[k])
            counts[k] += size  # (7) lambda_k* += n_m, at once: a later cluster of this episode can match the same row

        # (5) rho_t = lambda_k* + number of steps t' <= t with the label of t,  (6) bonus_t = 1 / sqrt(rho_t)
        order = labels.argsort(stable=True)
        ranks = torch.empty(len(labels), dtype=torch.int64)  # 1, 2, 3, ... within each cluster
        ranks[order] = torch.arange(1, len(labels) + 1) - (sizes.cumsum(0) - sizes)[labels[order]]
        bonuses = (torch.tensor(base_counts)[labels] + ranks) ** -0.5

        matched_rows = torch.tensor(matched_rows)
        self.centres = torch.cat([self.centres, centres[founders]])
        self.counts = torch.from_numpy(counts[:num_rows])
        self.births = F.pad(self.births, (0, len(founders)), value=global_step)
        self.appearances = F.pad(self.appearances, (0, len(founders))) + matched_rows.bincount(minlength=num_rows)
        return bonuses, matched_rows[labels]

    def remember(self, rows, images, positions):
        """What the rows look like and where they are: means over the steps (T,) that `visit` has just counted."""
        num_rows, num_new = len(self.counts), len(self.counts) - len(self.images)
        kept = 1 - rows.bincount(minlength=num_rows) / self.counts  # share of the earlier steps in the means
        sums = torch.zeros(num_rows, 3, 42, 42)
        for some_rows, some_images in zip(rows.split(128), images.split(128)):  # few enough to stay in the cache
            sums.index_add_(0, some_rows, some_images.float())
        self.images = F.pad(self.images, (0, 0, 0, 0, 0, 0, 0, num_new)) * kept[:, None, None, None]
        self.images += sums / self.counts[:, None, None, None]
        sums = torch.zeros(num_rows, 2).index_add_(0, rows, positions)
        self.positions = F.pad(self.positions, (0, 0, 0, num_new)) * kept[:, None] + sums / self.counts[:, None]

    def state_dict(self):
        return {name: column for name, column in vars(self).items() if name != "kappa"}

    def load_state_dict(self, state):
        vars(self).update({name: column.cpu() for name, column in state.items()})


def split_episodes(dones):
    """Indices into a flattened (T, N) rollout, one tensor for each environment's stretch between episode ends."""
    indices = torch.arange(dones.numel()).view(dones.shape)
    stretches = []
    for env in range(dones.shape[1]):
        stretches += indices[:, env].tensor_split(dones[:, env].nonzero().flatten().cpu())
    return [stretch for stretch in stretches if len(stretch)]


# ---- end method ----


if __name__ == "__main__":
    args = parse_args(Args, __doc__)
    if args.num_envs is None:
        args.num_envs = 1 if args.env == "habitat" else 32
    if args.minibatch_size is None:
        args.minibatch_size = min(1024, args.num_envs * args.num_steps)
    check(args)
    batch_size = args.num_envs * args.num_steps
    num_sequences = batch_size // args.bptt_length

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    keep_freed_memory()
    num_threads = torch.get_num_threads()

    envs = make_envs(args)
    agent = Agent(envs.single_action_space.n).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-8, fused=True)
    method = {}  # what the method learns: anything with state_dict() and load_state_dict(); saved with the agent

    # ---- method: init ----
    if args.kappa is None:
        args.kappa = 0.9 if args.env == "habitat" and args.encoder != "dino" else 0.8
    if not 0 < args.kappa <= 1:
        sys.exit(f"--kappa {args.kappa} must be above 0 and at most 1.")
    if args.num_clusters is None and args.cluster_scope == "rollout":
        args.num_clusters = 30 if args.env == "habitat" else 250
    if args.num_clusters is not None and args.num_clusters < 1:
        sys.exit("--num-clusters must be at least 1.")
    encoder = make_encoder(args, device)
    images = torch.zeros((args.num_steps, args.num_envs, *encoder.image_shape), dtype=torch.uint8, device=device)
    table = ClusterTable(args.kappa, encoder.embedding_size)
    bonus_log = BonusLog(args.num_envs)
    method.update(encoder=encoder, table=table, bonus_log=bonus_log)
    # ---- end method ----

    run = RunFolder(args, f"{args.env}__{args.exp_name}__{args.seed}__{int(time.time())}")
    checkpoint = run.load(device, method) if args.resume else None
    stop = StopOnSignal()
    next_frames, infos = envs.reset(seed=args.seed)
    visits = VisitCounts(envs.cells, envs.reachable_cells())
    recent_returns, recent_lengths = deque(maxlen=100), deque(maxlen=100)
    iteration, global_step, num_episodes, num_goals = 0, 0, 0, 0
    if args.resume:
        agent.load_state_dict(checkpoint["agent"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        visits.load_state_dict(checkpoint["visits"])
        for name, part in method.items():
            part.load_state_dict(checkpoint["method"][name])
        recent_returns.extend(checkpoint["recent_returns"])
        recent_lengths.extend(checkpoint["recent_lengths"])
        iteration, global_step, num_episodes, num_goals = checkpoint["counters"]
        torch.set_rng_state(checkpoint["rng"].cpu())
        next_frames, infos = envs.reset(seed=args.seed + global_step)  # fresh episodes, not the first ones again
    num_iterations = iteration + (args.total_timesteps - global_step) // batch_size
    videos = EpisodeVideos(run.path / "videos", next_frames[0]) if args.capture_video else None
    run.start_logging(global_step)

    # ALGO LOGIC: storage
    obs = torch.zeros((args.num_steps, args.num_envs, 3, 42, 42), dtype=torch.uint8, device=device)
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.int64, device=device)
    hiddens = torch.zeros((args.num_steps, args.num_envs, 256), device=device)  # what the actor and the critic see
    rewards = torch.zeros((args.num_steps, args.num_envs), device=device)
    dones = torch.zeros((args.num_steps, args.num_envs), device=device)  # dones[t]: obs[t] is the first of an episode
    final_values = torch.zeros((args.num_steps, args.num_envs), device=device)  # after a time-out, else 0
    positions = torch.zeros((args.num_steps, args.num_envs, 2))
    visited = np.zeros((args.num_steps, args.num_envs, 2))  # positions after the step, in the same episode
    initial_lstm_states = torch.zeros((args.num_steps // args.bptt_length, 2, args.num_envs, 256), device=device)
    next_obs = to_obs(next_frames, device)
    next_done = torch.ones(args.num_envs, device=device)
    next_lstm_state = agent.initial_state(args.num_envs, device)
    episode_return, episode_length = np.zeros(args.num_envs), np.zeros(args.num_envs, dtype=int)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit=" steps", mininterval=1)

    while True:
        if iteration % args.checkpoint_every == 0 or iteration == num_iterations or stop.requested:
            run.save(
                {
                    "agent": agent.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "method": {name: part.state_dict() for name, part in method.items()},
                    "visits": visits.state_dict(),
                    "recent_returns": list(recent_returns),
                    "recent_lengths": list(recent_lengths),
                    "counters": [iteration, global_step, num_episodes, num_goals],
                    "rng": torch.get_rng_state(),
                }
            )
            run.log_image("exploration/visits", visits.heat_map(), global_step)
        if iteration >= num_iterations or stop.requested:
            break

        watch = Stopwatch()
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = (1 - iteration / num_iterations) * args.learning_rate

        final_values.zero_()
        torch.set_num_threads(min(num_threads, args.num_envs))  # threads that share a frame mostly wait for each other
        for step in range(args.num_steps):
            if stop.requested:
                break
            frames = next_frames
            obs[step] = next_obs
            dones[step] = next_done
            positions[step] = torch.from_numpy(infos["position"])
            if step % args.bptt_length == 0:
                initial_lstm_states[step // args.bptt_length] = torch.stack(next_lstm_state)

            # ALGO LOGIC: action logic; log-probabilities and values follow after the rollout, all at once
            with torch.inference_mode():
                hidden, next_lstm_state = agent.get_states(next_obs[None], next_lstm_state, next_done[None])
                action = agent.get_action(hidden[0])
            hiddens[step], actions[step] = hidden[0], action
            watch.lap("policy")

            # TRY NOT TO MODIFY: execute the game
            next_frames, reward, terminations, truncations, infos = envs.step(action.cpu().numpy())
            ended = terminations | truncations
            rewards[step] = torch.from_numpy(reward)
            next_obs = to_obs(next_frames, device)
            next_done = torch.from_numpy(ended).float().to(device)
            if args.bootstrap_timeouts and truncations.any():
                # a time-out is no death: the value of the true last frame, with the LSTM state that led to it
                final_obs = to_obs(infos["final_obs"], device)
                with torch.no_grad():
                    value = agent.get_value(final_obs[None], next_lstm_state, torch.zeros_like(next_done)[None])[0]
                final_values[step] = value * torch.from_numpy(truncations).to(device)

            # ---- method: step ----
            images[step] = encoder.prepare(frames, obs[step])
            # ---- end method ----

            visited[step] = np.where(ended[:, None], infos["final_info"]["position"], infos["position"])
            episode_return += reward
            episode_length += 1
            if videos:
                videos.add(next_frames[0], ended[0], infos)
            if ended.any():
                recent_returns.extend(episode_return[ended].tolist())
                recent_lengths.extend(episode_length[ended].tolist())
                num_episodes += int(ended.sum())
                num_goals += int((episode_return[ended] > 0).sum())
                episode_return[ended], episode_length[ended] = 0, 0
            watch.lap("env")
            progress.update(args.num_envs)
        torch.set_num_threads(num_threads)
        if stop.requested:
            continue  # to the checkpoint; the unfinished rollout is dropped
        visits.add(visited.reshape(-1, 2))
        iteration, global_step = iteration + 1, global_step + batch_size

        # ALGO LOGIC: rewards; ends[t]: step t was the last of its episode
        ends = torch.cat([dones[1:], next_done[None]])
        total_rewards = args.reward_scale * args.ext_coef * rewards
        # ---- method: reward ----
        # the bonus of o_t belongs to the step that starts at o_t; (T, N, ...) -> (T * N, ...), in order of time
        embeddings = encoder(images.flatten(0, 1)).cpu()  # (1)
        intrinsic_rewards = torch.zeros(batch_size)
        episodes = [torch.arange(batch_size)] if args.cluster_scope == "rollout" else split_episodes(dones)
        for steps in episodes:
            labels = np.arange(len(steps))
            if args.episodic_clustering:
                labels = gmm_labels(embeddings[steps], args.num_clusters or math.ceil(len(steps) / 10))  # (2)
            intrinsic_rewards[steps], rows = table.visit(embeddings[steps], labels, global_step)
            table.remember(rows, obs.flatten(0, 1)[steps].cpu(), positions.flatten(0, 1)[steps])
        intrinsic_rewards = intrinsic_rewards.view(args.num_steps, args.num_envs).to(device)
        total_rewards += args.reward_scale * args.int_coef * intrinsic_rewards
        # ---- end method ----
        watch.lap("bonus")

        # values of the rollout; bootstrap value if not done
        with torch.no_grad():
            logprobs, _, values = agent.evaluate(hiddens, actions)
            next_value = agent.get_value(next_obs[None], next_lstm_state, next_done[None])
        next_values = torch.where(ends.bool(), final_values, torch.cat([values[1:], next_value]))
        advantages = compute_advantages(total_rewards, values, next_values, ends, args.gamma, args.gae_lambda)
        returns = advantages + values
        advantage_std = advantages.std()
        if args.norm_adv:
            # over the whole rollout: a minibatch is a few sequences, too few and too alike for a mean of their own
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
            for mb_inds in torch.randperm(num_sequences).to(device).split(args.minibatch_size // args.bptt_length):
                mb_lstm_state = tuple(b_lstm_states[:, mb_inds])
                hidden, _ = agent.get_states(b_obs[:, mb_inds], mb_lstm_state, b_dones[:, mb_inds])
                newlogprob, entropy, newvalue = agent.evaluate(hidden, b_actions[:, mb_inds])
                logratio = newlogprob - b_logprobs[:, mb_inds]
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

                entropy_loss = entropy.mean()
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
        # ---- end method ----
        watch.lap("update")

        # TRY NOT TO MODIFY: record what happened; losses are means over all minibatches
        loss_names = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")
        metrics = {
            "charts/episodic_return": np.mean(recent_returns) if recent_returns else np.nan,
            "charts/episodic_length": np.mean(recent_lengths) if recent_lengths else np.nan,
            "charts/success": np.mean([r > 0 for r in recent_returns]) if recent_returns else np.nan,
            "charts/episodes": num_episodes,
            "charts/goals": num_goals,
            "charts/learning_rate": optimizer.param_groups[0]["lr"],
            **{f"losses/{name}": value.item() for name, value in zip(loss_names, torch.stack(losses).mean(0))},
            "losses/first_ratio_error": first_ratio_error.item(),
            "losses/explained_variance": 1 - ((returns - values).var() / returns.var()).item(),
            "losses/advantage_std": advantage_std.item(),
            "exploration/unique_cells": visits.unique_cells(),
            "exploration/coverage": visits.coverage(),
            "exploration/visitation_entropy": visits.entropy(),
        }
        # ---- method: log ----
        metrics.update(bonus_log.metrics(intrinsic_rewards, ends))
        metrics["intrinsic/num_clusters"] = len(table.counts)
        metrics["intrinsic/cluster_entropy"] = Categorical(probs=table.counts.double()).entropy().item()
        # ---- end method ----
        seconds = sum(watch.seconds.values())
        timings = {f"time/{part}": share / seconds for part, share in watch.seconds.items()}
        timings["charts/SPS"] = batch_size / seconds
        run.log(metrics, global_step, timings)
        summary = f"coverage {metrics['exploration/coverage']:.0%}"
        if recent_returns:
            summary += f", return {metrics['charts/episodic_return']:.2f}, success {metrics['charts/success']:.0%}"
        progress.set_postfix_str(summary)

    progress.close()
    envs.close()
    run.close()
    if args.save_model:
        torch.save(agent.state_dict(), run.path / "agent.pt")
    print(f"The run is in {run.path}" + (f"; go on with --resume {run.path}" if iteration < num_iterations else ""))
