"""Prints what p2pBandwidthLatencyTest prints, with numbers that tell where they come from.

The value of a pair is ``base + 10 * sender + receiver``. Where it stands depends on the version, as
``cudaMemcpyPeerAsync(destination, ..., source, ...)`` of its source does: row = sender since
CUDA 10, but for reads; before, and for reads, row = receiver. A test of both directions belongs to
no sender: ``base + 10 * row + column``.
"""

BASES = {
    ("Unidirectional", "Disabled", ""): 100.0,
    ("Unidirectional", "Enabled", "Writes"): 200.0,
    ("Unidirectional", "Enabled", "Reads"): 300.0,
    ("Bidirectional", "Disabled", ""): 180.0,
    ("Bidirectional", "Enabled", ""): 500.0,
    ("Latency", "Disabled", ""): 20.0,
    ("Latency", "Enabled", "Writes"): 2.0,
    ("Latency", "Enabled", "Reads"): 3.0,
}
CPU_BASE = 7000.0  # wider than its field
NAME = "NVIDIA A100-SXM4-40GB"


def values(base, count):
    return [[base + 10 * row + column for column in range(count)] for row in range(count)]


def matrix(corner, rows):
    lines = [corner + "".join(f"{column:6d} " for column in range(len(rows)))]
    lines += [
        f"{index:6d} " + "".join(f"{value:6.02f} " for value in row)
        for index, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def comma_matrix(rows):
    """As AMD's port prints it."""
    lines = [" " + "".join(f",{column:6d}" for column in range(len(rows)))]
    lines += [
        f"{index}" + "".join(f",{value:6.02f}" for value in row) for index, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def connectivity(count, reaches):
    lines = ["     D\\D" + "".join(f"{column:6d}" for column in range(count))]
    lines += [
        f"{i:6d}\t" + "".join(f"{int(i == j or reaches(i, j)):6d}" for j in range(count))
        for i in range(count)
    ]
    return "P2P Connectivity Matrix\n" + "\n".join(lines) + "\n"


def printed(
    count,
    *,
    reads=False,
    old=False,
    cliques=False,
    amd=False,
    reaches=lambda i, j: True,
    change=lambda key, rows: rows,
):
    """The whole output.

    ``old`` as before CUDA 10, ``cliques`` as still earlier, ``amd`` as AMD's port; ``change``
    replaces the values of a matrix as they are printed.
    """
    text = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
    for index in range(count):
        text += f"Device: {index}, {NAME}, pciBusID: {7 + 32 * index:x}, "
        text += "pciDeviceID: 0, pciDomainID:0\n"
    for i in range(count):
        for j in range(count):
            word = "CAN" if reaches(i, j) else "CANNOT"
            text += f"Device={i} {word} Access Peer Device={j}\n" if i != j else ""
    text += "\n***NOTE: In case a device doesn't have P2P access to other one, it falls back to "
    text += "normal memcopy procedure.\nSo you can see lesser Bandwidth (GB/s) "
    text += "in those cases.\n\n" if old else "and unstable Latency (us) in those cases.\n\n"
    if cliques:
        text += f"P2P Cliques: \n[{' '.join(str(index) for index in range(count))}]\n"
    else:
        text += connectivity(count, reaches)
    for key, base in BASES.items():
        what, access, operation = key
        if operation == "Reads" and not reads:
            continue
        rows = values(base, count)
        if what != "Bidirectional" and (old or operation == "Reads"):
            rows = [list(column) for column in zip(*rows, strict=True)]
        rows = change(key, rows)
        named = f" (P2P {operation})" if operation and not old else ""
        if what != "Latency":
            text += f"{what} P2P={access} Bandwidth{named} Matrix (GB/s)\n"
            text += comma_matrix(rows) if amd else matrix("   D\\D", rows)
            continue
        text += f"P2P={access} Latency{named} Matrix (us)\n"
        cpu = values(CPU_BASE, count)
        if amd:
            text += "GPU:\n" + comma_matrix(rows) + "CPU:\n" + comma_matrix(cpu)
        elif old:
            text += matrix("   D\\D", rows)
        else:
            text += matrix("   GPU", rows) + "\n" + matrix("   CPU", cpu)
    return text + (
        "\nNOTE: The CUDA Samples are not meant for performance measurements. Results may vary "
        "when GPU Boost is enabled.\n"
    )
