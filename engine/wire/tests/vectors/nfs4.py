#!/usr/bin/env python3
"""Writes nfs4.txt: values of every operation and attribute of NFS version 4, encoded by what the RFCs' own .x files say.

    nfs4.py RFC7863 RFC8276 RFC8275 > nfs4.txt        (the RFCs as text)

It reads the XDR language (RFC 4506) in general and knows nothing of NFS but the names of the unions of operations, so it is a
judge of the codec that is written by hand. Each line: what it is, and the octets in hexadecimal.
"""
import random
import re
import sys

CASES = 3
random.seed(4)


def extract(path):
    """The lines of a .x file in an RFC."""
    lines = re.findall(r"^ *///(.*)$", open(path, errors="replace").read(), re.M)
    return "\n".join(line for line in lines if not line.strip().startswith("%"))


base, xattr, umask = (extract(path) for path in sys.argv[1:4])
# What is to be added to unions and enums stands in comments there.
arms = re.findall(r"case (OP_\w+): +(\w+) \w+;", xattr)
numbers = re.findall(r"(OP_\w+) += (\d+),", xattr)
text = base + xattr + re.sub(r"^ *%.*$", "", umask, flags=re.M) + "typedef mode_umask4 fattr4_mode_umask;"
text = """
struct authsys_parms { unsigned int stamp; string machinename<255>; unsigned int uid; unsigned int gid; unsigned int gids<16>; };
const AUTH_NONE = 0; const AUTH_SYS = 1; const RPCSEC_GSS = 6;
""" + text
text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
tokens = re.findall(r"[A-Za-z_]\w*|0x[0-9a-fA-F]+|-?\d+|[{}()<>\[\];:,=*]", text)

consts, types, at = {"FALSE": 0, "TRUE": 1}, {}, 0


def take(expected=None):
    global at
    token = tokens[at]
    at += 1
    assert expected in (None, token), (expected, tokens[at - 8 : at + 3])
    return token


def number(token):
    return consts[token] if token in consts else int(token, 0)


def declaration():
    """(name, type): a type is a string, or (kind, element, length)."""
    kind = take()
    if kind == "void":
        return None, "void"
    if kind == "unsigned":
        kind += " " + take() if tokens[at] in ("int", "hyper") else " int"
    if tokens[at] == "*":
        take()
        return take(), ("optional", kind, None)
    name = take()
    if tokens[at] == "[":
        take()
        length = number(take())
        take("]")
        return name, ("fixed", kind, length)
    if tokens[at] == "<":
        take()
        limit = None if tokens[at] == ">" else number(take())
        take(">")
        return name, ("variable", kind, limit)
    return name, kind


while at < len(tokens):
    word = take()
    if word == "const":
        name = take()
        take("=")
        consts[name] = number(take())
        take(";")
    elif word == "enum":
        name, members, last = take(), [], -1
        take("{")
        while tokens[at] != "}":
            member = take()
            last = last + 1
            if tokens[at] == "=":
                take()
                last = number(take())
            consts[member] = last
            members.append(last)
            if tokens[at] == ",":
                take()
        take("}")
        take(";")
        types[name] = ("enum", members)
    elif word == "typedef":
        name, what = declaration()
        take(";")
        types[name] = ("typedef", what)
    elif word == "struct":
        name, fields = take(), []
        take("{")
        while tokens[at] != "}":
            fields.append(declaration())
            take(";")
        take("}")
        take(";")
        types[name] = ("struct", fields)
    elif word == "union":
        name = take()
        take("switch")
        take("(")
        discriminant = declaration()[1]
        take(")")
        take("{")
        cases, default = {}, None
        while tokens[at] != "}":
            labels = []
            while tokens[at] in ("case", "default"):
                labels.append(take() if tokens[at] == "default" else (take(), take())[1])
                take(":")
            what = declaration()[1]
            take(";")
            for label in labels:
                if label == "default":
                    default = what
                else:
                    cases[number(label)] = what
        take("}")
        take(";")
        types[name] = ("union", discriminant, cases, default)
    elif word == "program":
        while tokens[at] != "=" or tokens[at + 2] != ";" or tokens[at - 1] != "}":
            take()
        take()
        take()
        take(";")

for name, value in numbers:
    consts[name] = int(value)
for operation, kind in arms:
    union = "nfs_argop4" if kind.endswith("args") else "nfs_resop4"
    types[union][2][consts[operation]] = kind


def word(value):
    return (value & 0xFFFFFFFF).to_bytes(4, "big")


def opaque(octets):
    return octets + b"\0" * (-len(octets) % 4)


def some(length):
    return bytes(random.choice((random.randrange(256), random.randrange(97, 123))) for _ in range(length))


def encode(what, depth=0, case=None):
    if isinstance(what, tuple):
        kind, element, limit = what
        if kind == "optional":
            return word(0) if depth > 6 or random.random() < 0.4 else word(1) + encode(element, depth + 3)
        length = limit if kind == "fixed" else random.randrange(1 + min(limit if limit is not None else 9, 9))
        if element in ("opaque", "string"):
            return (b"" if kind == "fixed" else word(length)) + opaque(some(length))
        if kind == "variable":
            length = min(length, 2)
            return word(length) + b"".join(encode(element, depth + 1) for _ in range(length))
        return b"".join(encode(element, depth + 1) for _ in range(length))
    if what == "void":
        return b""
    if what in ("int", "unsigned int", "int32_t", "uint32_t"):
        return word(random.choice((0, 1, random.getrandbits(32))))
    if what in ("hyper", "unsigned hyper", "int64_t", "uint64_t"):
        return random.choice((0, 7, random.getrandbits(64))).to_bytes(8, "big")
    if what == "bool":
        return word(random.randrange(2))
    found = types[what]
    if found[0] == "enum":
        return word(random.choice(found[1]))
    if found[0] == "typedef":
        return encode(found[1], depth, case)
    if found[0] == "struct":
        return b"".join(encode(field, depth + 1) for _, field in found[1])
    _, discriminant, cases, default = found
    if case is None:
        choices = list(cases)
        if default is not None:
            values = types[discriminant][1] if discriminant in types and types[discriminant][0] == "enum" else [0, 1, 7]
            others = [value for value in values if value not in cases]
            choices += others and [random.choice(others)]
        case = random.choice(choices)
    return word(case) + encode(cases.get(case, default), depth + 1)


print("# Made by nfs4.py from the .x files of RFC 7863, 8276 and 8275.")
for label, union in ("argument", "nfs_argop4"), ("result", "nfs_resop4"), ("cb-argument", "nfs_cb_argop4"), ("cb-result", "nfs_cb_resop4"):
    for case in sorted(types[union][2]):
        for octets in sorted({encode(union, 0, case) for _ in range(CASES)}):
            print(label, octets.hex())
for name in sorted((name for name in consts if name.startswith("FATTR4_")), key=consts.get):
    for octets in sorted({encode(name.lower()) for _ in range(CASES)}):
        print("attribute", consts[name], octets.hex() or "-")
