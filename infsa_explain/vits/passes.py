"""How models of users are run, and hooks that see the calls of one thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import RLock, get_ident
from typing import Any

import torch
from infsa_metrics.outputs import eval_mode
from torch import nn

from .wrappers import unwrapped

__all__ = ["forward_pass", "watching"]

#: Called before a module runs: (name, module, args, kwargs).
Before = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], None]
#: Called after it: (name, module, args, kwargs, output); a result other than None replaces the
#: output.
After = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]

#: PyTorch numbers hooks by a counter that is not safe between threads.
_LOCK = RLock()


@contextmanager
def watching(
    modules: Mapping[str, nn.Module], *, before: Before | None = None, after: After | None = None
) -> Iterator[None]:
    """Within this context, call functions before and after every call of some modules.

    Only calls in the thread that opened the context are seen. So several threads may use one model
    at the same time.

    Args:
        modules: by name.
        before: called before a module runs.
        after: called after it. A result other than None replaces the module's output.
    """
    thread = get_ident()

    def pre_hook(name: str) -> Callable[..., None]:
        # PyTorch leaves the keyword arguments out if the hook is removed during the call.
        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            if before is not None and get_ident() == thread:
                before(name, module, args, kwargs)

        return hook

    def hook_after(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
            if after is None or get_ident() != thread:
                return None
            return after(name, module, args, kwargs, output)

        return hook

    handles = []
    try:
        with _LOCK:
            for name, module in modules.items():
                if before is not None:
                    handle = module.register_forward_pre_hook(pre_hook(name), with_kwargs=True)
                    handles.append(handle)
                if after is not None:
                    handle = module.register_forward_hook(hook_after(name), with_kwargs=True)
                    handles.append(handle)
        yield
    finally:
        with _LOCK:
            for handle in handles:
                handle.remove()


@contextmanager
def forward_pass(model: nn.Module) -> Iterator[None]:
    """Within this context, a model runs in eval mode, uncompiled, and outside inference mode.

    Hooks do not see the inside of a compiled model, and tensors made in inference mode have no
    gradient. Afterwards the model is as before.
    """
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.inference_mode(False))
        if any(map(_is_compiled, model.modules())):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or unwrapped(module) is not module
