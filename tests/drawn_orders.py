"""The orders that random cases draw from."""

from simpar.pipeline import ORDERS

APART = ('v-min', 'v-half')
"""Orders that came later have tests of their own: a longer list would draw another case from every chosen seed."""
DRAWN = {name: order for name, order in ORDERS.items() if name not in APART}
