"""Search of strategies on an operator graph: MindSpore's two searches as it does them, and the exact optimum."""

from simpar.strategy_search.exact import Found, evaluate, exact, ranked
from simpar.strategy_search.graph import Graph, GraphBuilder, Operator, workload_graph
from simpar.strategy_search.objective import Bytes, Choice, Objective, propagate
from simpar.strategy_search.recursive import double_recursive
