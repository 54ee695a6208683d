"""Search of strategies on an operator graph: MindSpore's two searches as it does them, and the exact optimum."""

from simpar.strategy_search.exact import Found as Found
from simpar.strategy_search.exact import Memory as Memory
from simpar.strategy_search.exact import evaluate as evaluate
from simpar.strategy_search.exact import exact as exact
from simpar.strategy_search.exact import ranked as ranked
from simpar.strategy_search.graph import Graph as Graph
from simpar.strategy_search.graph import GraphBuilder as GraphBuilder
from simpar.strategy_search.graph import Operator as Operator
from simpar.strategy_search.graph import workload_graph as workload_graph
from simpar.strategy_search.objective import Bytes as Bytes
from simpar.strategy_search.objective import Objective as Objective
from simpar.strategy_search.propagate import propagate as propagate
from simpar.strategy_search.recursive import double_recursive as double_recursive
from simpar.strategy_search.rules import Choice as Choice

__all__ = [
    'Bytes',
    'Choice',
    'Found',
    'Graph',
    'GraphBuilder',
    'Memory',
    'Objective',
    'Operator',
    'double_recursive',
    'evaluate',
    'exact',
    'propagate',
    'ranked',
    'workload_graph',
]
