"""Page: an answer as one HTML file that stands alone: no server, no network, no other file."""

from simpar.page.page import answer_page
from simpar.page.recorded import ranks_page
