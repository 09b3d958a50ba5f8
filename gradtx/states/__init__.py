"""The classes of states, for annotations and `isinstance`; all can be had as ``gradtx.NAME`` too.

>>> import gradtx
>>> state = gradtx.scale_by_adam().init(0.0)
>>> isinstance(state, gradtx.states.ScaleByAdamState)
True
"""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
