"""Likely mistakes of chapter 03 that count bytes wrongly, as programs.

``memory_scaler`` and ``memory_fp16`` have those of the training steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

# ---- 03.1: model states -----------------------------------------------------------------------------------

Bytes = tuple[int, int, int]


def _counted(parameters: Iterable[Tensor], every: int, gradient: int, state: int) -> Bytes:
    """``every`` bytes for each element of a parameter, and the other two for each that is trained."""
    parameters = list(parameters)
    n = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return every * n, gradient * trained, state * trained


def _for_all(
    parameter: int, gradient: int, state: int, trained: bool = False
) -> Callable[[nn.Module], Bytes]:
    """The same elements in all three counts: those of all parameters, or of the trained ones."""

    def program(model: nn.Module) -> Bytes:
        n = sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)
        return parameter * n, gradient * n, state * n

    return program


def _under_each_name(model: nn.Module) -> Bytes:
    return _counted((p for _, p in model.named_parameters(remove_duplicate=False)), 2, 2, 12)


def _with_buffers(model: nn.Module) -> Bytes:
    parameters, gradients, states = _counted(model.parameters(), 2, 2, 12)
    return parameters + 2 * sum(b.numel() for b in model.buffers()), gradients, states


def _as_stored(model: nn.Module) -> Bytes:
    _, gradients, states = _counted(model.parameters(), 2, 2, 12)
    return sum(p.nbytes for p in model.parameters()), gradients, states


def _all_as_stored(model: nn.Module) -> Bytes:
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    _, _, states = _counted(model.parameters(), 2, 2, 12)
    return sum(p.nbytes for p in model.parameters()), trained, states


def _storages(model: nn.Module) -> Bytes:
    def count(parameters: Iterable[Tensor]) -> int:
        return sum(p.untyped_storage().nbytes() // p.element_size() for p in parameters)

    every, trained = count(model.parameters()), count(p for p in model.parameters() if p.requires_grad)
    return 2 * every, 2 * trained, 12 * trained


def _by_address(parameters: Iterable[Tensor]) -> Bytes:
    return _counted({p.data_ptr(): p for p in parameters}.values(), 2, 2, 12)


STATES: dict[str, Callable[[nn.Module], Bytes]] = {
    "when frozen parameters are given gradients and optimizer states": _for_all(2, 2, 12),
    "when frozen parameters are left out, though forward computes with them": _for_all(
        2, 2, 12, trained=True
    ),
    "when frozen parameters are given optimizer states": lambda model: (
        *_counted(model.parameters(), 2, 2, 12)[:2],
        _for_all(2, 2, 12)(model)[2],
    ),
    "when frozen parameters are given gradients": lambda model: (
        2 * sum(p.numel() for p in model.parameters()),
        2 * sum(p.numel() for p in model.parameters()),
        _counted(model.parameters(), 2, 2, 12)[2],
    ),
    "when a tied parameter is counted under each of its names": _under_each_name,
    "when one of the three fp32 tensors is left out: master weights and two moments take 12 bytes": lambda model: (
        _counted(model.parameters(), 2, 2, 8)
    ),
    "when frozen parameters are given master weights": lambda model: (
        *_counted(model.parameters(), 2, 2, 12)[:2],
        _counted(model.parameters(), 2, 2, 8)[2] + 4 * sum(p.numel() for p in model.parameters()),
    ),
    "when gradients are counted in fp32": lambda model: _counted(model.parameters(), 2, 4, 12),
    "when parameters are counted in fp32": lambda model: _counted(model.parameters(), 4, 2, 12),
    "when the states have 16 bits too": lambda model: _counted(model.parameters(), 2, 2, 6),
    "when parameters and gradients are counted in fp32 and the master weights left out": (
        lambda model: _counted(model.parameters(), 4, 4, 8)
    ),
    "when buffers are counted as parameters": _with_buffers,
    "when parameters are counted in the dtype that they have now": _as_stored,
    "when parameters and gradients are counted in the dtype that the model has now": _all_as_stored,
    "when a parameter that is a view is counted with the whole tensor": _storages,
    "when elements are counted and not bytes": lambda model: _counted(model.parameters(), 1, 1, 3),
    "when only the first of all parameters with one address counts: on the device meta every address is 0": (
        lambda model: _by_address(reversed([*model.parameters()]))
    ),
    "when only the last of all parameters with one address counts: on the device meta every address is 0": (
        lambda model: _by_address(model.parameters())
    ),
}


# ---- 03.3: what autograd keeps ----------------------------------------------------------------------------


def by_hooks(once: str = "", own: str = "", size: str = "storage") -> Callable[[nn.Module, Tensor], int]:
    """The count of ``pack``'s calls with something changed; as it stands it counts every call with its storage.

    Args:
        once: ``"storage"``: the first call with a storage counts; ``"last"``: the last one; ``"view"``: the first
            one with a tensor that begins there; empty: all.
        own: what of the model is left out: ``"parameters"``, ``"all"`` (buffers too), or nothing.
        size: what counts: ``"storage"``, ``"view"``, ``"elements"``, or ``"fp32"``: four bytes for each of them.
    """

    def program(model: nn.Module, x: Tensor) -> int:
        left_out = [*model.parameters()] if own else []
        left_out += [*model.buffers()] if own == "all" else []
        mine = {t.untyped_storage().data_ptr() for t in left_out}
        found: list[tuple[int, int]] = []

        def pack(t: Tensor) -> Tensor:
            storage = t.untyped_storage()
            if storage.data_ptr() not in mine:
                fp32 = 4 * storage.nbytes() // t.element_size()
                sizes = {"storage": storage.nbytes(), "view": t.nbytes, "elements": t.numel(), "fp32": fp32}
                found.append((t.data_ptr() if once == "view" else storage.data_ptr(), sizes[size]))
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            output = model(x)
        del output
        if not once:
            return sum(bytes_ for _, bytes_ in found)
        return sum(dict(found if once == "last" else reversed(found)).values())

    return program


def _own_by(same: Callable[[Tensor, Tensor], bool]) -> Callable[[nn.Module, Tensor], int]:
    """The right count, but for how a kept tensor is found to be one of the model's own."""

    def program(model: nn.Module, x: Tensor) -> int:
        kept: dict[int, int] = {}
        mine = [*model.parameters(), *model.buffers()]

        def pack(t: Tensor) -> Tensor:
            if not any(same(t, own) for own in mine):
                kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            output = model(x)
        del output
        return sum(kept.values())

    return program


def _without_input(model: nn.Module, x: Tensor) -> int:
    kept: dict[int, int] = {}
    mine = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in mine:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        output = model(x)
    del output
    return sum(kept.values())


def _of_modules(*, inputs: bool) -> Callable[[nn.Module, Tensor], int]:
    """The outputs of all modules, and their inputs as well: what is easily seen, kept or not."""

    def program(model: nn.Module, x: Tensor) -> int:
        seen: dict[int, Tensor] = {}

        def note(_: nn.Module, args: tuple, output: Tensor) -> None:
            for t in (*args, output) if inputs else (output,):
                seen[t.untyped_storage().data_ptr()] = t

        handles = [module.register_forward_hook(note) for module in model.modules()]
        try:
            model(x)
        finally:
            for handle in handles:
                handle.remove()
        return sum(t.untyped_storage().nbytes() for t in seen.values())

    return program


def _in_mode(training: bool) -> Callable[[nn.Module, Tensor], int]:
    def program(model: nn.Module, x: Tensor) -> int:
        modes = [(module, module.training) for module in model.modules()]
        try:
            return by_hooks(once="storage", own="all")(model.train(training), x)
        finally:
            for module, mode in modes:
                module.training = mode

    return program


SAVED_BYTES: dict[str, Callable[[nn.Module, Tensor], int]] = {
    "when a storage is counted once for each operator that keeps it": by_hooks(own="all"),
    "when parameters and buffers are counted too": by_hooks(once="storage"),
    "when everything that `pack` gets is counted, parameters too, and as often as it comes": by_hooks(),
    "when buffers are counted": by_hooks(once="storage", own="parameters"),
    "when a view counts with its own bytes, and not with those of its storage": by_hooks(
        once="storage", own="all", size="view"
    ),
    "when a storage counts with the bytes of the last view of it that came": by_hooks(
        once="last", own="all", size="view"
    ),
    "when every tensor counts with its own bytes, and as often as it comes": by_hooks(own="all", size="view"),
    "when elements are counted and not bytes": by_hooks(once="storage", own="all", size="elements"),
    "when the input is left out": _without_input,
    "when two parts of one storage count as two storages, because they begin at different addresses": by_hooks(
        once="view", own="all"
    ),
    "when a view of a parameter counts, because it begins at another address than the parameter": _own_by(
        lambda t, own: t.data_ptr() == own.data_ptr()
    ),
    "when a kept tensor is compared with the storages' addresses by where it begins itself": _own_by(
        lambda t, own: t.data_ptr() == own.untyped_storage().data_ptr()
    ),
    "when the address of a storage is compared with where parameters and buffers begin": _own_by(
        lambda t, own: t.untyped_storage().data_ptr() == own.data_ptr()
    ),
    "when parameters and buffers are told by the tensor object, and not by the storage": _own_by(
        lambda t, own: (t if t._base is None else t._base) is own
    ),
    "when every element counts with the four bytes of fp32": by_hooks(once="storage", own="all", size="fp32"),
    "when the outputs of all modules are counted, and not what operators keep": _of_modules(inputs=False),
    "when the inputs and outputs of all modules are counted, and not what operators keep": _of_modules(
        inputs=True
    ),
    "when the model is set to training mode before it is measured": _in_mode(True),
    "when the model is set to evaluation mode before it is measured": _in_mode(False),
}


# ---- 03.5: the largest batch ------------------------------------------------------------------------------

LARGEST_BATCH: dict[str, Callable[[float, float, float], int]] = {
    "when the result is a negative number, where not even one sequence fits": lambda one, two, room: int(
        (room - (2 * one - two)) // (two - one)
    ),
    "when the model states are counted once for every sequence": lambda one, two, room: int(room // one),
    "when the model states are left out": lambda one, two, room: int(room // (two - one)),
    "when the first sequence takes no room": lambda one, two, room: (
        int((room - (2 * one - two)) // (two - one)) + 1
    ),
    "when the step of one sequence is taken for the model states": lambda one, two, room: max(
        0, int((room - one) // (two - one))
    ),
    "when a batch that fills `capacity` exactly is refused": lambda one, two, room: max(
        0, -int(-(room - (2 * one - two)) // (two - one)) - 1
    ),
    "when the number is rounded to the nearest, and not down": lambda one, two, room: max(
        0, round((room - (2 * one - two)) / (two - one))
    ),
    "when only 1, 2, 4, 8 and so on are tried": lambda one, two, room: (
        0 if room < one else 2 ** (int((room - (2 * one - two)) // (two - one)).bit_length() - 1)
    ),
    "when at least one sequence is returned, though none fits": lambda one, two, room: max(
        1, int((room - (2 * one - two)) // (two - one))
    ),
}
