"""The name that ``pyroscope`` had once, for code that still imports it."""

from pyroscope import *  # noqa: F403
from pyroscope import __all__ as __all__
