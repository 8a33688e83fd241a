"""Episodes of several turns: one batched pass over all of them, in which a row that called a tool is given the answer's tokens.

Every step appends one token to every row: a sampled one, one of an observation, or padding behind an episode that is over. So no
row waits for another, and rows, columns and seeds decide each number: the same call gives the same bits.
"""

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.envs import kernel
from course.envs.evidence import Evidence
from course.envs.kernel import State, Transition, World, confirm, reset, runtime_key
from course.language.actions import Action, Malformed
from course.language.serializer import ChatSerializer, Encoded, Span
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.language.transcript import StopReason, Transcript, Turn
from course.models.decoder import Decoder
from course.models.decoding import Decoding, start_decoding
from course.models.policy import Policy
from course.models.sampling import uniform_noise
from course.models.score import evaluating
from course.rollout.record import Layout, Record, Step, Versions, attempt_of, text_hash
from course.tasks.agent import AgentTask
from course.tasks.records import Batch

KEY = b"the runtime's key in exercises"  # a runtime whose results others must believe has one that nobody else knows
MAX_COLUMNS = 4096  # of a batch, if the model allows more
NOISE_COLUMNS = 64  # drawn at once

Grader = Callable[[State], Evidence]
Confirms = Callable[[Action, AgentTask], bool]


@dataclass(frozen=True)
class Play:
    """One episode to be played: the task, the seed of its environment, and which noise its tokens are drawn with.

    confirmed: the user's words on the actions that wait for one, in order, where they are known from a record.
    """

    task: AgentTask
    environment_seed: int
    sampling_seed: int
    noise_episode: int
    confirmed: tuple[bool, ...] | None = None


@runtime_checkable
class Journal(Protocol):
    """Is told of an episode as it happens, each token before anything is done with it."""

    def token(self, token: int, chance: float) -> tuple[int, float]:
        """A sampled token and its probability; what comes back counts."""
        ...

    def steps(self, made: "Sequence[Step]") -> None:
        """What came of the tokens since the step before."""
        ...


@dataclass(frozen=True)
class Timing:
    """Seconds of the policy (passes and drawing), of the environment (reset, step, grade), of all turns, and of everything.

    Not in the turns: what is done once for an episode, before the first and after the last (reset, prompt, grade, record).
    """

    policy: float
    environment: float
    turns: float
    total: float

    @property
    def policy_share(self) -> float:
        """The policy's part in the time of a turn."""
        return self.policy / self.turns


@dataclass(frozen=True)
class EpisodeBatch(Batch):
    """reward [B]: the graders' word. turn [B,T]: the number, in its record, of the step that a token belongs to; -1 for none."""

    reward: Float[Tensor, "batch"]
    turn: Int[Tensor, "batch time"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward.shape != (len(self),) or not torch.isfinite(self.reward).all():
            raise ValueError(f"reward must be one finite number for each of {len(self)} episodes; got {self.reward}")
        if self.turn.shape != self.tokens.shape or ((self.turn >= 0) != self.action_mask).any():
            raise ValueError("turn must be [B,T], -1 exactly where action_mask is 0")

    def __getitem__(self, rows: Any) -> "EpisodeBatch":
        parts = (self.tokens, self.attention_mask, self.action_mask, self.reward, self.turn)
        return EpisodeBatch(*(part[rows] for part in parts))

    def to(self, device: torch.device | str) -> "EpisodeBatch":
        parts = (self.tokens, self.attention_mask, self.action_mask, self.reward, self.turn)
        return EpisodeBatch(*(part.to(device) for part in parts))


class Recorded(NamedTuple):
    """What a loss needs to know of the sampling, under the names that Samples has."""

    logprobs: Float[Tensor, "batch next"]  # 0 where the token is no action
    temperature: float


@dataclass(frozen=True)
class Episodes:
    """Records with the group of each: a task's episodes stand in a row. Takes the place of a Rollout in a training loop."""

    records: tuple[Record, ...]
    group_id: Int[Tensor, "batch"]
    pad_id: int
    timing: Timing = Timing(0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if not self.records or self.group_id.shape != (len(self.records),):
            got = f"{len(self.records)} and {tuple(self.group_id.shape)}"
            raise ValueError(f"records must be at least one, with a group_id each; got {got}")
        if len({record.temperature for record in self.records}) > 1:
            raise ValueError("records must have one temperature: log-probabilities at two belong to two laws")

    def __len__(self) -> int:
        return len(self.records)

    @property
    def abstained(self) -> tuple[int, ...]:
        """The episodes whose verifier gave no score: not a 0, and nothing to train on."""
        return tuple(i for i, record in enumerate(self.records) if record.reward is None)

    def judged(self) -> "Episodes":
        """Without those. Report how many they were."""
        kept = [i for i, record in enumerate(self.records) if record.reward is not None]
        if not kept:
            raise ValueError(f"records must hold one with a score; the verifier abstained on all {len(self)}")
        return Episodes(tuple(self.records[i] for i in kept), self.group_id[kept], self.pad_id, self.timing)

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(len(record.logprobs) for record in self.records)

    @cached_property
    def batch(self) -> EpisodeBatch:
        """All episodes, padded on the right."""
        if self.abstained:
            raise ValueError(f"records must all have a score; the verifier abstained on {self.abstained}: take judged() first")
        width = max(len(record.tokens) for record in self.records)
        tokens = torch.tensor([[*r.tokens, *[self.pad_id] * (width - len(r.tokens))] for r in self.records])
        length = torch.tensor([len(record.tokens) for record in self.records])
        turn = torch.tensor([_turns(record, width) for record in self.records])
        reward = torch.tensor([float(record.reward) for record in self.records])
        return EpisodeBatch(tokens, torch.arange(width) < length[:, None], turn >= 0, reward, turn)

    @cached_property
    def samples(self) -> Recorded:
        """Log-probabilities as recorded while sampling, aligned with `batch`."""
        logprobs = torch.zeros(len(self), self.batch.tokens.shape[1] - 1)
        logprobs[self.batch.action_mask[:, 1:]] = torch.tensor([p for record in self.records for p in record.logprobs])
        return Recorded(logprobs, self.records[0].temperature)


def _turns(record: Record, width: int) -> list[int]:
    row = [-1] * width
    for number, step in enumerate(record.steps):
        start, stop = step.span
        row[start:stop] = [number] * (stop - start)
    return row


def deny(action: Action, task: AgentTask) -> bool:
    """The answer to an action that waits for a confirmation, where nobody is there to give another."""
    return False


def episode_seed(seed: int, number: int) -> int:
    """The environment's seed for episode `number` of a run: every episode of a run has its own, also within a group."""
    return seed * 1_000_003 + number


def plays_of(tasks: Sequence[AgentTask], group_size: int, seed: int, first_episode: int = 0) -> list[Play]:
    """group_size plays of each task, in a row; number i has the noise of (seed, first_episode + i)."""
    numbers = range(first_episode, first_episode + len(tasks) * group_size)
    return [Play(tasks[i // group_size], episode_seed(seed, number), seed, number) for i, number in enumerate(numbers)]


def collect_episodes(
    policy: Policy,
    world: World,
    tasks: Sequence[AgentTask],
    *,
    grader: Grader,
    seed: int,
    max_action_tokens: int,
    temperature: float = 1.0,
    group_size: int = 1,
    first_episode: int = 0,
    key: bytes = KEY,
    step: Callable[[State, str], Transition] = kernel.step,
    confirms: Confirms = deny,
    rows: int | None = None,
    columns: int | None = None,
) -> Episodes:
    """group_size episodes of each task; episode p * group_size + g is about task p.

    Episode number i has the noise of (seed, first_episode + i) and an environment seed made of the two: alone, or in another
    batch, it draws the same noise. temperature 0 takes the most likely token each time. rows and columns fix the shape of the
    batch; by default it fits.
    """
    if group_size < 1 or not tasks:
        raise ValueError(f"group_size and the number of tasks must be at least 1; got {group_size} and {len(tasks)}")
    plays = dict(enumerate(plays_of(tasks, group_size, seed, first_episode)))
    records, timing = play_episodes(
        policy, world, plays, grader=grader, max_action_tokens=max_action_tokens, temperature=temperature, key=key, step=step,
        confirms=confirms, rows=rows, columns=columns,
    )  # fmt: skip
    group_id = torch.arange(len(tasks)).repeat_interleave(group_size)
    return Episodes(tuple(records[i] for i in range(len(plays))), group_id, policy.tokenizer.pad_id, timing)


def scripted_episodes(
    texts: Sequence[Sequence[str]],
    world: World,
    tasks: Sequence[AgentTask],
    *,
    tokenizer: Tokenizer,
    serializer: ChatSerializer,
    grader: Grader,
    environment_seeds: Sequence[int],
    producer: str = "demonstration",
    key: bytes = KEY,
    step: Callable[[State, str], Transition] = kernel.step,
    confirms: Confirms = deny,
) -> Episodes:
    """Episodes of actions that somebody else chose: texts[i] are the actions for tasks[i]. What cloning learns from.

    The record names the producer in place of a policy. Each action ends in an end token, and has log-probability 0: there was no
    choice to be repeated. An episode whose texts end before it does is truncated.
    Raises: ValueError if there is a text for an episode that is over, or one without a token.
    """
    if not len(texts) == len(tasks) == len(environment_seeds):
        got = f"{len(texts)}, {len(tasks)} and {len(environment_seeds)}"
        raise ValueError(f"texts, tasks and environment_seeds must be equally many; got {got}")
    writer = Writer(tokenizer, serializer)
    versions = _versions(producer, writer, world)
    records = []
    for number, (actions, task, seed) in enumerate(zip(texts, tasks, environment_seeds)):
        episode, allowance, tail = Running(writer, world, Play(task, seed, 0, number), producer, key, step, confirms), 1, None
        layout = Layout(1, 0, len(episode.ids) + 1)
        for place, text in enumerate(actions):
            if place and tail is None:
                raise ValueError(f"texts[{number}] must end with the episode, after {place} actions; got {len(actions)}")
            if place:
                episode.go_on(tail)
            ids = (*tokenizer.encode(text), tokenizer.end_id)
            tail, allowance = episode.act(ids), max(allowance, len(ids))
        logprobs = (0.0,) * sum(stop - start for start, stop in (step.span for step in episode.steps))
        records.append(episode.record(logprobs, grader(episode.state), layout, versions, 1.0, allowance))
    return Episodes(tuple(records), torch.arange(len(records)), tokenizer.pad_id)


def _versions(policy: str, writer: "Writer", world: World) -> dict[str, str]:
    """All versions of a record but the grader's."""
    return {
        "policy": policy,
        "tokenizer": writer.tokenizer.digest(),
        "serializer": writer.serializer.digest(),
        "environment": f"{world.name}@{world.version}",
    }


def play_episodes(
    policy: Policy,
    world: World,
    plays: Mapping[int, Play],
    *,
    grader: Grader,
    max_action_tokens: int,
    temperature: float = 1.0,
    key: bytes = KEY,
    step: Callable[[State, str], Transition] = kernel.step,
    confirms: Confirms = deny,
    rows: int | None = None,
    columns: int | None = None,
    journals: Mapping[int, Journal] = {},
) -> tuple[dict[int, Record], Timing]:
    """Play these episodes, each in the row that it is given; other rows stay blank. What happens in a row depends on no other.

    A turn begins only where max_action_tokens columns are left for it; where they are not, the episode is truncated.
    journals: by row, for instance write-ahead logs.
    """
    tokenizer = policy.tokenizer
    if tokenizer is None:
        raise ValueError("policy must have a tokenizer of the course; observations become tokens by it")
    if max_action_tokens < 1 or not 0 <= temperature < float("inf"):
        got = f"{max_action_tokens} and {temperature}"
        raise ValueError(f"max_action_tokens must be at least 1 and temperature finite, not negative; got {got}")
    began = time.perf_counter()
    writer = Writer(tokenizer, policy.serializer)
    versions = _versions(policy.stamp(temperature), writer, world)
    running = {row: Running(writer, world, play, versions["policy"], key, step, confirms) for row, play in plays.items()}
    rows = rows or len(plays)
    columns = columns or max(len(episode.ids) for episode in running.values()) + 1
    if not plays or not all(0 <= row < rows for row in plays):
        raise ValueError(f"plays must be at least one, in rows 0..{rows - 1}; got rows {sorted(plays)}")
    board = _Board(policy, running, plays, rows, columns, max_action_tokens, journals)
    with _repeatable(policy.model):
        turns_s = time.perf_counter()
        policy_s = board.run(temperature)
        turns_s = time.perf_counter() - turns_s
    records, graded = {}, time.perf_counter()
    evidence = {row: grader(episode.state) for row, episode in running.items()}
    graded = time.perf_counter() - graded
    for row, episode in running.items():
        records[row] = episode.record(
            board.logprobs(row), evidence[row], Layout(rows, row, columns), versions, float(temperature), max_action_tokens
        )
    environment_s = graded + sum(episode.seconds for episode in running.values())
    return records, Timing(policy_s, environment_s, turns_s, time.perf_counter() - began)


@contextmanager
def _repeatable(model: Any) -> Iterator[None]:
    """Evaluation mode, weights' own precision, one thread: sums in an order that does not depend on the number of threads."""
    threads = torch.get_num_threads()
    plain = torch.autocast(next(model.parameters()).device.type, enabled=False) if isinstance(model, Decoder) else nullcontext()
    torch.set_num_threads(1)
    try:
        with evaluating(model), plain:
            yield
    finally:
        torch.set_num_threads(threads)


class LayoutError(ValueError):
    """A batch that can't be of this shape."""


class _Board:
    """The batch that is decoded: ids and plans of all rows, one line per column, so that a step touches one line."""

    def __init__(
        self, policy: Policy, running: Mapping[int, "Running"], plays: Mapping[int, Play], rows: int, columns: int, allowance: int,
        journals: Mapping[int, Journal],
    ):  # fmt: skip
        self.policy, self.running, self.rows, self.columns, self.allowance = policy, running, rows, columns, allowance
        self.journals = journals
        self.capacity = _capacity(policy.model)
        longest = max(len(episode.ids) for episode in running.values())
        # One padded column at least: a batch with padding is computed otherwise than one without, and that must not
        # depend on which episodes are in it.
        if columns <= longest or columns + allowance > self.capacity:
            raise LayoutError(
                f"columns must be above the longest prompt ({longest} tokens) and leave {allowance} of {self.capacity} for an "
                f"action; got {columns}"
            )
        self.pad_id, self.end_id = policy.tokenizer.pad_id, policy.tokenizer.end_id
        try:
            self.ids = torch.full((self.capacity, rows), self.pad_id)
            self.chance = torch.ones(self.capacity, rows)
            self.free = torch.zeros(self.capacity, rows, dtype=torch.bool)
        except (RuntimeError, TypeError, MemoryError, OverflowError) as error:
            raise LayoutError(f"rows must be as many as there is memory for; got {rows}") from error
        # The same memory, looked at in the way in which reading and writing single numbers costs least.
        self.id_table, self.chance_table, self.free_table = self.ids.numpy(), self.chance.numpy(), self.free.numpy()
        self.length = [1] * rows  # of each prompt
        self.turn_from = [columns] * rows
        self.deadlines: dict[int, set[int]] = {}  # column: the rows whose turn may not go beyond it
        for row, episode in running.items():
            self.id_table[columns - len(episode.ids) : columns, row] = episode.ids
            self.length[row] = len(episode.ids)
            self._open(row, columns)
        seeds = {play.sampling_seed: [] for play in plays.values()}
        for row, play in plays.items():
            seeds[play.sampling_seed].append((row, play.noise_episode))
        self.seeds = {seed: torch.tensor(pairs).unbind(1) for seed, pairs in seeds.items()}

    def _open(self, row: int, begin: int) -> None:
        """A turn begins in this column."""
        self.turn_from[row] = begin
        self.free_table[begin : begin + self.allowance, row] = True
        self.deadlines.setdefault(begin + self.allowance - 1, set()).add(row)

    def run(self, temperature: float) -> float:
        """Decode until every episode is over; returns the policy's seconds."""
        device, spent, clock = self.policy.device, 0.0, time.perf_counter
        mask = torch.arange(self.columns) >= self.columns - torch.tensor(self.length)[:, None]
        left = set(self.running)
        began = clock()
        decoding = start_decoding(
            self.policy.model, self.ids[: self.columns].t().contiguous().to(device), mask.to(device), self.capacity
        )
        if decoding.logits.shape[-1] != self.policy.tokenizer.vocab_size:
            sizes = f"{decoding.logits.shape[-1]} and {self.policy.tokenizer.vocab_size}"
            raise ValueError(f"policy must have as many tokens as its tokenizer, or it samples ids without a text; got {sizes}")
        for now in range(self.columns, self.capacity):
            if (now - self.columns) % NOISE_COLUMNS == 0:
                noise = self._noise(now).to(device)
            if now > self.columns:
                decoding.step(self.ids[now - 1].to(device))
            drawn, chance = _draw(decoding, noise[(now - self.columns) % NOISE_COLUMNS], temperature)
            self.chance[now] = chance[:, 0]
            torch.where(self.free[now], drawn.cpu()[:, 0], self.ids[now], out=self.ids[now])
            for row, journal in self.journals.items():
                if self.free_table[now, row]:
                    said = int(self.id_table[now, row]), float(self.chance_table[now, row])
                    self.id_table[now, row], self.chance_table[now, row] = journal.token(*said)
            spent -= began - clock()
            ended = ((self.id_table[now] == self.end_id) & self.free_table[now]).nonzero()[0].tolist()
            for row in sorted({*ended, *self.deadlines.pop(now, ())}):
                if not self._answer(row, now):
                    left.discard(row)
            if not left:
                break
            began = clock()
        return spent

    def _answer(self, row: int, now: int) -> bool:
        """A turn has ended with this column. Whether another one begins."""
        episode, start = self.running[row], self.turn_from[row]
        before = len(episode.steps)
        tail = episode.act(tuple(self.id_table[start : now + 1, row].tolist()))
        if row in self.journals:
            self.journals[row].steps(episode.steps[before:])
        begin, deadline = now + 1, start + self.allowance - 1
        if now < deadline:
            self.free_table[begin : deadline + 1, row] = False
            self.deadlines[deadline].discard(row)
        if tail is None or begin + len(tail) + self.allowance > self.capacity:
            return False
        self.id_table[begin : begin + len(tail), row] = tail
        self._open(row, begin + len(tail))
        episode.go_on(tail)
        return True

    def _noise(self, column: int) -> Tensor:
        """Noise of the next columns, [columns, B, 1]: it goes by how many tokens stand before, whatever the padding."""
        size = min(NOISE_COLUMNS, self.capacity - column)
        before = torch.tensor(self.length) + column - self.columns + torch.arange(size)[:, None]
        noise = torch.ones(size, self.rows)
        for seed, (rows, episodes) in self.seeds.items():
            noise[:, rows] = uniform_noise(seed, episodes, before[:, rows])
        return noise[..., None]

    def logprobs(self, row: int) -> tuple[float, ...]:
        """float32 values of a row's sampled tokens, each worked out alone: a vector's log could depend on its neighbours."""
        offset = self.columns - self.length[row]
        spans = [step.span for step in self.running[row].steps]
        chance = [p for start, stop in spans for p in self.chance_table[start + offset : stop + offset, row].tolist()]
        if not all(p > 0 for p in chance):
            raise ValueError("policy must give logits that are finite or -inf; sampling met NaN")
        return tuple(torch.tensor([log(p) for p in chance]).tolist())


def _capacity(model: Any) -> int:
    config = getattr(model, "config", None)
    limit = (
        getattr(config, "max_length", None) if isinstance(model, Decoder) else getattr(config, "max_position_embeddings", None)
    )
    return min(limit or MAX_COLUMNS, MAX_COLUMNS)


def _draw(decoding: Decoding, level: Float[Tensor, "batch 1"], temperature: float) -> tuple[Tensor, Tensor]:
    """A token per row and its probability, as models.sampling draws them."""
    logits = decoding.logits
    if temperature == 0:
        best, token = logits.max(-1, keepdim=True)
        return token, torch.where(best.isfinite(), 1.0, best)
    law = torch.softmax(logits if temperature == 1 else logits.float() / temperature, -1, dtype=torch.float32)
    below = law.cumsum(-1)
    last = below.shape[-1] - 1
    token = torch.searchsorted(below, level * below.narrow(1, last, 1)).clamp_(max=last)
    return token, law.gather(1, token)


class Writer:
    """Texts to ids and back, each worked out once: few different observations come, and come often."""

    def __init__(self, tokenizer: Tokenizer, serializer: ChatSerializer):
        self.tokenizer, self.serializer = tokenizer, serializer
        self._texts: dict[tuple[int, ...], str] = {}
        self._openings: dict[str, tuple] = {}
        self._tails: dict[tuple, tuple] = {}

    def text(self, ids: tuple[int, ...]) -> str:
        """What an action says: its ids without the end token."""
        if ids not in self._texts:
            content = ids[:-1] if ids and ids[-1] == self.tokenizer.end_id else ids
            self._texts[ids] = self.tokenizer.decode(content)
        return self._texts[ids]

    def opening(self, prompt: str) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """Ids and spans of the user's turn and the header of the first answer."""
        if prompt not in self._openings:
            self._openings[prompt] = self._until_open(Turn("user", prompt), from_turn=-1)
        return self._openings[prompt]

    def tail(self, observations: tuple[str, ...], stop: StopReason) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """Ids and spans from behind a sampled turn to the header of the next; spans count tokens and turns from there."""
        if (observations, stop) not in self._tails:
            ids = (self.tokenizer.end_id,) if stop is StopReason.END else ()
            turns = [Turn("assistant", ids=ids, sampled=True, stop=stop), *(Turn("tool", text) for text in observations)]
            self._tails[observations, stop] = self._until_open(*turns, from_turn=0)
        return self._tails[observations, stop]

    def _until_open(self, *turns: Turn, from_turn: int) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """What the serializer writes behind the content of turn from_turn (-1: everything), up to where an answer begins."""
        opened = Turn("assistant", ids=(), sampled=True, stop=StopReason.LENGTH)
        encoded = self.serializer.encode(Transcript((*turns, opened)), self.tokenizer)
        spans = encoded.spans[:-1]  # the last is of the answer, and empty
        if from_turn >= 0:
            at = next(i for i, span in enumerate(spans) if span.kind == "sampled")
            offset, spans = spans[at].stop, spans[at + 1 :]
            spans = tuple(Span(s.start - offset, s.stop - offset, s.kind, s.turn_index) for s in spans)
            return encoded.tokens[offset:], spans
        return encoded.tokens, spans


class Running:
    """One episode while it is played: its ids, spans and steps so far, and the environment's state."""

    def __init__(
        self, writer: Writer, world: World, play: Play, policy: str, key: bytes, step: Callable[[State, str], Transition],
        confirms: Confirms,
    ):  # fmt: skip
        began = time.perf_counter()
        self.writer, self.play, self.step, self.confirms = writer, play, step, confirms
        attempt = attempt_of(policy, play.sampling_seed, play.noise_episode)
        self.state, seen = reset(world, play.task, play.environment_seed, runtime_key(key, play.environment_seed), attempt)
        self.seconds = time.perf_counter() - began
        ids, spans = writer.opening(" ".join(filter(None, (play.task.prompt, seen))))
        self.ids, self.spans = list(ids), list(spans)
        self.stops: list[StopReason | None] = [None]
        self.steps: list[Step] = []
        self.terminated = False

    def act(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
        """Take a sampled turn. The ids between it and the next one, or None if the episode is over."""
        start = len(self.ids)
        stop = StopReason.END if ids[-1] == self.writer.tokenizer.end_id else StopReason.LENGTH
        self.spans.append(Span(start, start + len(ids), "sampled", len(self.stops)))
        self.ids.extend(ids)
        self.stops.append(stop)
        text = self.writer.text(ids)
        began = time.perf_counter()
        made = [self.step(self.state, text)]
        if made[0].outcome == "waiting" and not made[0].state.over:
            made.append(confirm(made[0].state, self._confirmed(made[0].action)))
        self.seconds += time.perf_counter() - began
        self.state = made[-1].state
        self.steps += [_step(t, (start if t is made[0] else len(self.ids), len(self.ids))) for t in made]
        self.terminated = made[-1].terminated
        if made[-1].terminated or made[-1].truncated:
            return None
        self._between = self.writer.tail(tuple(t.observation for t in made), stop)
        return self._between[0]

    def _confirmed(self, action: Action) -> bool:
        if self.play.confirmed is None:
            return bool(self.confirms(action, self.play.task))
        asked = sum(step.outcome == "waiting" for step in self.steps)
        return asked < len(self.play.confirmed) and self.play.confirmed[asked]

    def go_on(self, ids: tuple[int, ...]) -> None:
        """The next turn begins, behind these ids."""
        start, turns = len(self.ids), len(self.stops) - 1
        self.spans += [Span(s.start + start, s.stop + start, s.kind, s.turn_index + turns) for s in self._between[1]]
        self.ids.extend(ids)
        self.stops += [None] * (self.spans[-1].turn_index - len(self.stops))

    def record(
        self, logprobs: tuple[float, ...], evidence: Evidence, layout: Layout, versions: Mapping[str, str], temperature: float,
        max_action_tokens: int,
    ) -> Record:  # fmt: skip
        play, task = self.play, self.play.task
        return Record(
            task=task.public(),
            task_digest=task.digest(),
            episode=self.state.episode,
            environment_seed=play.environment_seed,
            sampling_seed=play.sampling_seed,
            noise_episode=play.noise_episode,
            temperature=temperature,
            max_action_tokens=max_action_tokens,
            layout=layout,
            versions=Versions(grader=f"{evidence.verifier}@{evidence.version}", **versions),
            encoded=Encoded(tuple(self.ids), tuple(self.spans), tuple(self.stops)),
            logprobs=logprobs,
            steps=tuple(self.steps),
            ending="terminated" if self.terminated else "truncated",
            evidence=evidence,
        )


def _step(t: Transition, span: tuple[int, int]) -> Step:
    malformed = isinstance(t.action, Malformed)
    return Step(
        span=span,
        text=t.text,
        outcome=t.outcome,
        tool=t.action.tool,
        arguments=None if malformed else dict(t.action.arguments),
        observation=t.observation,
        observation_hash=text_hash(t.observation),
        cost=t.cost.to_json(),
        signature=t.signature,
        reason=t.reason,
        latency_ms=t.latency_ms,
        result_hash=digest(dict(t.state.facts[-1])) if t.outcome == "executed" else "",
    )
