"""Places in data read from JSON or a state dict, at which a test damages it."""


def keys(node):
    return list(node) if isinstance(node, dict) else range(len(node))


def walk(node):
    if isinstance(node, dict | list):
        yield node
        for key in keys(node):
            yield from walk(node[key])
