"""The model: a graph of operators, each of which says its keys, shapes, named axes and work in one file."""
