"""AND-OR proof search: the exact search that needs no network, and the search that a policy and a value network guide.

A proof is (tactic, (proof of each subgoal, ...)). It costs 1 for its tactic and then as much as its hardest subgoal.
"""

from dataclasses import dataclass, fields
from heapq import heappop, heappush
from itertools import count
from typing import Any, Callable, Hashable, Iterable, Sequence

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch

from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.score import evaluating

Goal = Hashable
Tactic = Any
Proof = tuple  # (tactic, (Proof, ...))
Kernel = Callable[[Any, Any], Sequence | None]


def proof_cost(proof: Proof) -> int:
    """Number of tactics along the longest branch of a proof.

        cost(tactic, subproofs) = 1 + max over subproofs of cost,   1 without subproofs

    Shapes and units: a proof is (tactic, (proof, ...)); result in tactics, at least 1.
    Reduces to: the number of tactics for a proof that never branches.
    Raises: ValueError if proof is not such a pair.
    Source: AlphaProof charges 1 for each tactic, and an AND node as much as its hardest goal.
    """
    cost, layer = 0, [proof]
    while layer:
        for node in layer:
            if not isinstance(node, tuple) or len(node) != 2 or not isinstance(node[1], (tuple, list)):
                raise ValueError(f"proof must be a pair (tactic, subproofs) all the way down; got {node!r}")
        cost, layer = cost + 1, [sub for _, subs in layer for sub in subs]
    return cost


def solve(goal: Goal, tactics: Callable[[Any], Sequence], kernel: Kernel, budget: int) -> Proof | None:
    """A cheapest proof of a goal that costs at most `budget`, or None if there is none. Exact, also where goals repeat.

        cost(g) = 1 + min over tactics t valid at g of max over subgoals s of kernel(g, t) of cost(s)

    Shapes and units: tactics(goal) lists tactics in order of preference; kernel(goal, tactic) gives the subgoals, or None for a
    tactic that does not apply, which costs nothing and changes nothing; budget in tactics. Goals are hashable. Among
    cheapest proofs the result uses, at every goal, the tactic that comes first.
    Why it ends: rounds go by bound. Round b asks the tactics of the goals at distance b-1, and settles the goals that cost exactly b
    minus their distance. A cycle never settles. Each tactic of each goal meets the kernel once.
    Reduces to: breadth-first search where every tactic leaves one goal; None for budget 0.
    Raises: ValueError if budget is not an integer >= 0.
    Source: AND-OR search (Nilsson 1980); the costs are AlphaProof's.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise ValueError(f"budget must be an integer >= 0; got {budget!r}")
    moves: dict[Any, list[tuple[Any, tuple]]] = {}
    settled: dict[Any, tuple[int, Proof]] = {}
    distance, above, frontier = {goal: 0}, {goal: []}, [goal]
    agenda: list[tuple[int, int, int, Any]] = []  # (round, cost, number, goal): when a goal can be settled
    number = count()  # goals need not be comparable

    def arrange(g: Any) -> None:
        ready = [subgoals for _, subgoals in moves[g] if all(s in settled for s in subgoals)]
        if ready:
            cost = 1 + min(max((settled[s][0] for s in subgoals), default=0) for subgoals in ready)
            heappush(agenda, (distance[g] + cost, cost, next(number), g))

    for bound in range(1, budget + 1):
        if not frontier and not agenda:
            return None
        found = []
        for g in frontier:
            results = ((tactic, kernel(g, tactic)) for tactic in tactics(g))
            moves[g] = [(tactic, tuple(subgoals)) for tactic, subgoals in results if subgoals is not None]
            for sub in dict.fromkeys(s for _, subgoals in moves[g] for s in subgoals):
                if sub not in distance:
                    distance[sub], above[sub] = bound, []
                    found.append(sub)
                above[sub].append(g)
            arrange(g)
        frontier = found
        while agenda and agenda[0][0] <= bound:
            _, cost, _, g = heappop(agenda)
            if g not in settled:
                settled[g] = (cost, _first_proof(moves[g], settled, cost - 1))
                for parent in above[g]:
                    if parent not in settled:
                        arrange(parent)
        if goal in settled:
            return settled[goal][1]
    return None


def _first_proof(moves: list[tuple[Any, tuple]], settled: dict[Any, tuple[int, Proof]], most: int) -> Proof:
    """By the first tactic all of whose subgoals are settled at no more than `most`."""
    ready = ((t, subgoals) for t, subgoals in moves if all(s in settled and settled[s][0] <= most for s in subgoals))
    tactic, subgoals = next(ready)
    return tactic, tuple(settled[s][1] for s in subgoals)


# ---------------------------------------------------------------- guided search


@dataclass(frozen=True)
class ProofCompute:
    """What was spent. A tactic is one token, so a proposed tactic is a sampled token and, since each is tried, a kernel call."""

    kernel_calls: int = 0
    network_calls: int = 0  # goals read by the network; a goal met again in the same search is not read again
    read_tokens: int = 0  # tokens of those goals
    sampled_tokens: int = 0
    trained_tokens: int = 0  # tokens of training sequences, each time one is used

    def __add__(self, other: "ProofCompute") -> "ProofCompute":
        return ProofCompute(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        """In tokens of one forward pass. A trained token counts three: its backward pass costs about two forward passes."""
        return self.read_tokens + self.sampled_tokens + 3 * self.trained_tokens


@dataclass(frozen=True)
class SearchResult:
    goal: Any
    proof: Proof | None
    compute: ProofCompute
    refuted: bool  # every tactic of the goal leads nowhere: more search would change nothing


Guide = Callable[[Sequence], tuple[Sequence[Sequence[float]], Sequence[float], Sequence[int]]]


class _Node:
    """An OR node: one goal of one branch. `cost` is what a proof of it seems to cost, as far as this search knows."""

    def __init__(self, goal: Any, parent: "_Edge | None"):
        self.goal, self.parent = goal, parent
        self.edges: list[_Edge] | None = None
        self.guess = self.cost = 1.0
        self.visits, self.proof, self.dead = 0, None, False

    def line(self) -> Iterable[Any]:
        node = self
        while node is not None:
            yield node.goal
            node = node.parent and node.parent.node

    def update(self) -> bool:
        """From its tactics: proved by one all of whose goals are, dead if all are, else as cheap as the best one tried. True: changed."""
        before = self.cost, self.proof, self.dead
        self.edges = live = [e for e in self.edges if not e.dead]
        tried = [e for e in live if e.children is not None]
        done = [e for e in tried if all(c.proof is not None for c in e.children)]
        if done:
            best = min(done, key=lambda e: e.cost)
            self.proof, self.cost = (best.tactic, tuple(c.proof for c in best.children)), best.cost
        else:
            self.dead, self.cost = not live, min((e.cost for e in tried), default=self.guess)
        return before != (self.cost, self.proof, self.dead)


class _Edge:
    """An AND node: one tactic at a goal, and the goals it leaves. Untried, it seems to cost what the goal seemed to cost at first."""

    def __init__(self, node: _Node, tactic: Any, prior: float):
        self.node, self.tactic, self.prior = node, tactic, prior
        self.children: list[_Node] | None = None
        self.visits, self.dead, self.cost = 0, False, node.guess

    def update(self) -> None:
        """From its goals: dead if one of them is, else one tactic more than the hardest."""
        self.dead = any(c.dead for c in self.children)
        self.cost = 1.0 + max((c.cost for c in self.children), default=0.0)


class _Tree:
    def __init__(self, goal: Any, tactics: Sequence, kernel: Kernel, exploration: float):
        self.tactics, self.kernel, self.exploration = tactics, kernel, exploration
        self.root = _Node(goal, None)
        self.known: dict[Any, tuple[Sequence[float], float]] = {}
        self.proved: dict[Any, Proof] = {}
        self.unread = [self.root]
        self.calls = self.reads = self.read_tokens = 0

    @property
    def finished(self) -> bool:
        return self.root.proof is not None or self.root.dead

    def spent(self, budget: int, total: int | None) -> bool:
        return self.calls >= budget or (total is not None and self.calls + self.read_tokens >= total)

    def advance(self, budget: int, total: int | None) -> None:
        """Try tactics until there are goals that the network has not read, the search is over, or the budget is spent."""
        while not self.unread and not self.finished and not self.spent(budget, total):
            node = self.root
            while True:
                node.visits += 1
                edge = self._choose(node)
                edge.visits += 1
                if edge.children is None:
                    break
                node = max((c for c in edge.children if c.proof is None), key=lambda c: c.cost)
            self._try(edge)

    def _choose(self, node: _Node) -> _Edge:
        bonus = self.exploration * node.visits**0.5
        return max(node.edges, key=lambda e: bonus * e.prior / (1 + e.visits) - e.cost)

    def _try(self, edge: _Edge) -> None:
        self.calls += 1
        left = self.kernel(edge.node.goal, edge.tactic)
        above = set(edge.node.line())
        if left is None or any(goal in above for goal in left):  # invalid, or a circle: proving a goal by way of itself
            edge.dead = True
            self._back_up(edge.node)
        else:
            edge.children = [_Node(goal, edge) for goal in left]
            for child in edge.children:
                if child.goal in self.proved:
                    child.proof = self.proved[child.goal]
                    child.cost = float(proof_cost(child.proof))
                elif child.goal in self.known:
                    self._open(child)
                else:
                    self.unread.append(child)
            edge.update()
            self._back_up(edge.node)

    def _open(self, node: _Node) -> None:
        prior, guess = self.known[node.goal]
        node.guess = node.cost = max(1.0, guess)
        node.edges = [_Edge(node, tactic, p) for tactic, p in zip(self.tactics, prior)]

    def _back_up(self, node: _Node) -> None:
        while node.update():
            if node.proof is not None:
                self.proved.setdefault(node.goal, node.proof)
            if node.parent is None:
                break
            node.parent.update()
            node = node.parent.node

    def read(self, answers: Iterable[tuple[Any, Sequence[float], float, int]]) -> None:
        for goal, prior, guess, tokens in answers:
            self.known[goal] = (prior, guess)
            self.reads, self.read_tokens = self.reads + 1, self.read_tokens + tokens
        for node in self.unread:
            self._open(node)
        edges = {id(n.parent): n.parent for n in self.unread if n.parent}
        self.unread = []
        for edge in edges.values():
            edge.update()
            self._back_up(edge.node)

    def result(self) -> SearchResult:
        spent = ProofCompute(self.calls, self.reads, self.read_tokens, sampled_tokens=self.calls)
        return SearchResult(self.root.goal, self.root.proof, spent, self.root.dead)


def guided_search(
    goals: Sequence,
    tactics: Sequence,
    kernel: Kernel,
    guide: Guide,
    *,
    budget: int,
    total: int | None = None,
    exploration: float = 2.0,
) -> list[SearchResult]:
    """One AND-OR search for each goal, side by side, so that the network reads the goals of all of them in one batch.

        at a goal:      the tactic with the greatest  exploration * prior * sqrt(visits of the goal) / (1 + tries) - cost
        at its tactic:  the unproved goal that seems hardest
        cost of a tactic tried = 1 + greatest cost of its goals;  of a goal = least cost of its tried tactics, else the guess

    Shapes and units: guide(goals) -> (priors [n][tactics], guessed costs [n], tokens read [n]); budget in kernel calls for each
    goal, an invalid tactic included; total: a second limit for each goal, on ProofCompute.total, None for none. The weights behind the guide are read and never changed.
    Reduces to: breadth-first search, roughly, under a guide that knows nothing.
    Raises: ValueError if budget is not positive.
    Source: PUCT as in AlphaZero (Silver et al. 2018); AND-OR search and costs after AlphaProof; the details are ours.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 kernel call; got {budget}")
    trees = [_Tree(goal, tactics, kernel, exploration) for goal in goals]
    active = trees
    while active:
        wanted = [dict.fromkeys(node.goal for node in tree.unread) for tree in active]
        new = [goal for asked in wanted for goal in asked]
        answers = zip(new, *guide(new))
        for tree, asked in zip(active, wanted):
            tree.read([next(answers) for _ in asked])
            tree.advance(budget, total)
        active = [tree for tree in active if tree.unread and not tree.spent(budget, total)]
    return [tree.result() for tree in trees]


class Prover(nn.Module):
    """Tactic policy and value network on one trunk. prover(ids, mask) -> (logits [B,T,V], costs [B,T]), as course.training.sft asks.

    `encode` turns a goal into token ids; a tactic is one token, tactics[i] being first_tactic + i.
    """

    def __init__(
        self, config: DecoderConfig, encode: Callable[[Any], tuple[int, ...]], first_tactic: int, tactics: int, seed: int
    ):
        super().__init__()
        self.value = ScalarHead(Decoder(config, seed), seed)
        self.encode, self.first_tactic, self.tactics = encode, first_tactic, tactics

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> tuple[Float[Tensor, "batch time vocab"], Float[Tensor, "batch time"]]:
        hidden = self.value.trunk.hidden(ids, attention_mask)
        return self.value.trunk.head(hidden), self.value.out(hidden)[..., 0]

    def guide(self, goals: Sequence) -> tuple[list[list[float]], list[float], list[int]]:
        """Priors over tactics, guessed cost and tokens read, for goals of any number."""
        rows = [self.encode(goal) for goal in goals]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.tensor([row + (0,) * (int(lengths.max()) - len(row)) for row in rows])
        with evaluating(self):
            hidden = self.value.trunk.hidden(ids, torch.arange(ids.shape[1]) < lengths[:, None])
            last = hidden[torch.arange(len(rows)), lengths - 1]
            logits = self.value.trunk.head(last)[:, self.first_tactic : self.first_tactic + self.tactics]
            return torch.softmax(logits, -1).tolist(), self.value.out(last)[:, 0].tolist(), lengths.tolist()
