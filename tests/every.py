"""How many of the random training plans the suite trains: of each property every twelfth one.

`make prove-training` trains every one (SIMPAR_EVERY=1). What the plans cover is checked of all of them in both.
"""

import os

EVERY = int(os.environ.get('SIMPAR_EVERY', '12'))
