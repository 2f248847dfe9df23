"""The access file: what it says, and errors that name the line, the value and what to do."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from gateway.access.policy import (
    AccessFileRefused,
    GrantsRefused,
    Issuer,
    Policy,
    find_claim,
    read_policy,
)
from gateway.access.rights import Grant, Permission, Rights

ISSUER = """
[[issuer]]
issuer = "https://id.example.com"
audience = "nsq"
jwks_url = "https://id.example.com/jwks.json"
"""
ALL = '[{ topic = ".*", channels = [".*"], permissions = ["subscribe", "publish", "admin"] }]'
SHA = "a" * 64


def policy(text: str) -> Policy:
    return read_policy(text.encode())


def issuer_of(text: str) -> Issuer:
    (issuer,) = policy(text).issuers.values()
    return issuer


def rights(text: str, **claims: Any) -> Rights:  # noqa: ANN401
    found = policy(text)
    (issuer,) = found.issuers.values()
    return found.rights(issuer, claims)


def test_an_empty_file_is_valid() -> None:
    """It lets nobody in."""
    found = policy("")

    assert ({}, {}, []) == (found.issuers, found.keys, found.rules)


def test_what_an_issuer_leaves_out_has_a_safe_default() -> None:
    issuer = issuer_of(ISSUER)

    assert ("RS256", "ES256", "EdDSA") == issuer.algorithms
    assert {"nsq"} == issuer.audiences
    assert ("sub", None) == (issuer.subject_claim, issuer.grants_claim)


def test_keys_are_found_by_their_hash_and_may_end() -> None:
    text = f"""
    [[key]]
    name = "billing"
    sha256 = "{SHA}"
    grants = {ALL}
    [[key]]
    name = "trial"
    sha256 = "{"B" * 64}"
    expires_at = 2027-01-31T01:00:00+01:00
    [[key.grants]]
    topic = "^orders$"
    permissions = ["publish"]
    """

    found = policy(text).keys

    billing, trial = found[bytes.fromhex(SHA)].identity, found[b"\xbb" * 32].identity
    assert ("key", "billing", math.inf) == (billing.issuer, billing.name, billing.expires_at)
    assert 1_801_353_600 == trial.expires_at
    assert trial.rights.allows(Permission.PUBLISH, "orders")
    assert not trial.rights.allows(Permission.PUBLISH, "orders2")


@pytest.mark.parametrize(
    "when,claims,is_granted",
    [
        ('{ groups = "ops" }', {"groups": "ops"}, True),
        ('{ groups = "ops" }', {"groups": ["dev", "ops"]}, True),
        ('{ groups = "ops" }', {"groups": ["ops2", "OPS"]}, False),
        ('{ groups = "ops" }', {"groups": "dev ops"}, False),
        ('{ groups = "ops" }', {"groups": {"ops": True}}, False),
        ('{ groups = "ops" }', {"groups": [["ops"]]}, False),
        ('{ groups = "ops" }', {"groups": None}, False),
        ('{ groups = "ops" }', {}, False),
        ('{ groups = "ops", level = 3 }', {"groups": "ops", "level": 3}, True),
        ('{ groups = "ops", level = 3 }', {"groups": "ops", "level": 2}, False),
        ('{ groups = "ops", level = 3 }', {"groups": "ops"}, False),
        ("{ level = 1 }", {"level": True}, False),
        ("{ level = 1 }", {"level": 1.0}, False),
        ("{ level = 1 }", {"level": "1"}, False),
        ("{ verified = true }", {"verified": True}, True),
        ("{ verified = true }", {"verified": 1}, False),
        ("{ verified = false }", {}, False),
        ('{ scope = "nsq" }', {"scope": "openid nsq email"}, True),
        ('{ scope = "nsq" }', {"scope": "openid nsq2"}, False),
        ('{ realm_access.roles = "ops" }', {"realm_access": {"roles": ["ops"]}}, True),
        ('{ "realm_access.roles" = "ops" }', {"realm_access": {"roles": ["ops"]}}, True),
        ('{ "realm_access.roles" = "ops" }', {"realm_access": ["roles", "ops"]}, False),
        ('{ "https://x.example/roles" = "ops" }', {"https://x.example/roles": ["ops"]}, True),
        ('{ resource_access."a.b".roles = "x" }', {"resource_access": {"a.b": {"roles": "x"}}}, 1),
    ],
)
def test_a_rule_holds_if_all_its_claims_match(
    when: str, claims: dict[str, Any], *, is_granted: int
) -> None:
    text = f"{ISSUER}[[rule]]\nwhen = {when}\ngrants = {ALL}"

    assert bool(is_granted) is rights(text, **claims).allows(Permission.PUBLISH, "t")


def test_a_claim_of_the_whole_name_goes_before_the_way_into_objects() -> None:
    claims = {"a.b": 1, "a": {"b": 2, "c": {"d.e": 3}}}

    assert 1 == find_claim(claims, ["a.b"])
    assert 2 == find_claim(claims, ["a", "b"])
    assert 3 == find_claim(claims, ["a", "c", "d.e"])
    assert None is find_claim(claims, ["a.x"])


def test_rights_are_those_of_the_claim_and_of_all_rules_that_hold() -> None:
    text = f"""{ISSUER}grants_claim = "ext.nsq"
    [[rule]]
    issuer = "https://id.example.com"
    grants = [{{ topic = "^all$", permissions = ["watch"] }}]
    [[rule]]
    when = {{ groups = "ops" }}
    grants = [{{ topic = "^ops$", permissions = ["publish"] }}]
    """
    claim = [{"topic": "^own$", "channels": ["^c$"], "permissions": ["subscribe"]}]

    found = rights(text, ext={"nsq": claim}, groups=["ops"])

    assert ["^own$", "^all$", "^ops$"] == [grant.topic for grant in found.grants]
    assert found.allows(Permission.SUBSCRIBE, "own", "c")
    assert not found.allows(Permission.SUBSCRIBE, "own", "d")
    assert found.allows(Permission.WATCH, "all")
    assert not rights(text).allows(Permission.PUBLISH, "ops")


def test_a_rule_of_another_issuer_does_not_hold() -> None:
    other = ISSUER.replace("id.example.com", "other")
    found = policy(f'{ISSUER}{other}[[rule]]\nissuer = "https://other"\ngrants = {ALL}')

    assert [False, True] == [
        found.rights(issuer, {}).allows(Permission.PUBLISH, "t")
        for issuer in found.issuers.values()
    ]


def test_callers_with_equal_grants_share_their_rights() -> None:
    found = policy(f'{ISSUER}grants_claim = "nsq"\n[[rule]]\nwhen = {{ a = 1 }}\ngrants = {ALL}')
    (issuer,) = found.issuers.values()
    grant = {"topic": "^a$", "permissions": ["publish"]}

    first = found.rights(issuer, {"sub": "a", "nsq": [grant], "a": 1})

    assert first is found.rights(issuer, {"sub": "b", "nsq": [dict(grant), grant], "a": 1})
    assert first is not found.rights(issuer, {"nsq": [grant]})


def test_rights_of_many_callers_stay_in_their_bound() -> None:
    found = policy(f'{ISSUER}grants_claim = "nsq"')
    (issuer,) = found.issuers.values()

    for number in range(5_000):
        found.rights(issuer, {"nsq": [{"topic": f"^t{number}$", "permissions": ["publish"]}]})

    assert len(found._shared) <= 4_096


@pytest.mark.parametrize(
    "claim",
    [
        "publish",
        {"topic": "a"},
        [1],
        [{"topic": "("}],
        [{"topic": "(", "permissions": ["publish"]}],
        [{"topic": "a", "permissions": []}],
        [{"topic": "a", "permissions": ["admin"]}],
        [{"topic": "a", "permissions": "publish"}],
        [{"topic": "a", "permissions": ["publish"], "ttl": 1}],
        [{"topic": "a", "permissions": ["publish"]}] * 1_001,
    ],
)
def test_grants_in_a_token_that_are_not_valid_are_refused(claim: object) -> None:
    """All of them: a part of what an issuer meant may be more than it meant."""
    with pytest.raises(GrantsRefused):
        rights(f'{ISSUER}grants_claim = "nsq"', nsq=claim)


def test_patterns_without_anchors_have_a_warning() -> None:
    text = f"""[[key]]
name = "billing"
sha256 = "{SHA}"
grants = [
  {{ topic = "orders", channels = ["^a", ".*", "b"], permissions = ["subscribe"] }},
]
"""
    found = policy(text).warnings

    assert [
        (
            "access file, line 5: the pattern 'orders' of the key 'billing' matches every topic "
            "that contains it; for exactly one topic, write '^orders$'"
        ),
        (
            "access file, line 5: the pattern 'b' of the key 'billing' matches every channel that "
            "contains it; for exactly one channel, write '^b$'"
        ),
    ] == list(found)


def test_an_issuer_whose_tokens_may_nothing_has_a_warning() -> None:
    assert policy(ISSUER).warnings == (
        (
            "access file, line 2: tokens of the issuer https://id.example.com have no rights; add "
            "grants_claim, or a [[rule]]"
        ),
    )
    assert () == policy(f'{ISSUER}grants_claim = "nsq"').warnings


HEAD = f'[[key]]\nname = "a"\nsha256 = "{SHA}"\n'
KEY = f"{HEAD}grants = {ALL}\n"
GRANT = '{ topic = "^a$", permissions = ["publish"] }'
ERRORS = [
    # The document.
    ("x = 1", 1, "unknown key 'x'; allowed: issuer, key, rule"),
    ("\n\n[[isuer]]", 3, "unknown key 'isuer' (did you mean issuer?)"),
    ("\n[issuer]\nissuer = 'a'", 2, "issuer is not a list of tables; write [[issuer]]"),
    ("key = 1", 1, "key is not a list of tables; write [[key]]"),
    ("[[issuer]]\n[", 2, "it is not valid TOML: "),
    ("a = '''\n\n", 1, "it is not valid TOML: "),
    ("[[rule]]\n\n[[rule]]\nwhen = { a = 1, a = 2 }", 4, "it is not valid TOML: "),
    # Issuers.
    (f"{ISSUER}audiance = 1", 6, "unknown key 'audiance' (did you mean audience?)"),
    (ISSUER.replace('audience = "nsq"\n', ""), 2, "issuer 1 has no `audience`; add it"),
    (ISSUER.replace('"nsq"', "[]"), 4, "audience is []; allowed: a list of 1 to 1000 texts"),
    (ISSUER.replace('"nsq"', '["a", ""]'), 4, "audience is ['a', '']; allowed: "),
    (ISSUER.replace('"nsq"', "7"), 4, "audience is 7; allowed: "),
    (ISSUER.replace("jwks_url", "#"), 2, "issuer 1 has no keys; allowed: one of jwks_url, "),
    (f'{ISSUER}key_file = "a"', 6, "issuer 1 has jwks_url and key_file; allowed: one of "),
    (ISSUER.replace("https://id.example.com/j", "http://id/j"), 5, "allowed: https, because"),
    (ISSUER.replace("https://id.example.com/j", "ftp://id/j"), 5, "jwks_url is 'ftp://id/jwks."),
    (ISSUER.replace("https://id.example.com/j", "https://:1x/"), 5, "jwks_url is 'https://:1x/"),
    (ISSUER.replace("//id.example.com/j", "//a:b@id/"), 5, "it has a user or password in it"),
    (ISSUER.replace('"https://id.example.com"', '"key"'), 3, "'key' has another meaning in"),
    (ISSUER.replace('"https://id.example.com"', f'"{"x" * 257}"'), 3, "257 characters; limit 256"),
    (ISSUER.replace('"https://id.example.com"', '"a\\nb"'), 3, "issuer is 'a\\nb'; allowed: "),
    (ISSUER + ISSUER, 8, "the issuer 'https://id.example.com' has an entry in line 2; write one"),
    (f'{ISSUER}algorithms = ["none"]', 6, "algorithms is 'none'; allowed: RS256, ES256, EdDSA"),
    (f'{ISSUER}algorithms = ["HS256"]', 6, "HS256 needs a secret, which no jwks_url may have"),
    (
        f'{ISSUER}algorithms = ["HS256", "RS256"]'.replace("jwks_url", "key_file"),
        6,
        "HS256 and others with a key_file; allowed: HS256 alone",
    ),
    (ISSUER * 33, 162, "33 entries [[issuer]]; limit 32 entries"),
    # Keys.
    (f"{KEY}\n[[key]]\n# none", 6, "key 2 has no `name`; add it"),
    ('[[key]]\nname = "a"\nsha256 = "nsq_secret"', 3, "the sha256 of the key 'a' is not a SHA-256"),
    ('[[key]]\nname = "a"', 1, "the sha256 of the key 'a' is not a SHA-256"),
    (KEY + KEY, 7, "the key in line 1 has the same sha256"),
    (KEY + KEY.replace(SHA, "b" * 64), 6, "the key in line 1 has the same name"),
    (f"{KEY}expires_at = 2027-01-01T00:00:00", 5, "expires_at is '2027-01-01 00:00:00'; allowed"),
    (f"{KEY}expires_at = 2027-01-01", 5, "expires_at is '2027-01-01'; allowed: a time with an"),
    (f'{KEY}expires_at = "2027"', 5, "expires_at is '2027'; allowed: a time with an offset"),
    (HEAD, 1, "the grants of the key 'a' are missing; allowed: a list such as "),
    (f"{HEAD}grants = []", 4, "the grants of the key 'a' are missing"),
    (f"{HEAD}grants = [{f'{GRANT},' * 1_001}]", 4, "1001 grants of the key 'a'; limit 1000"),
    # Grants.
    (f"{HEAD}grants = [\n{GRANT},\n1]", 4, "grants is 1; allowed: a table with topic, channels"),
    (
        f'{HEAD}grants = [\n{GRANT},\n{GRANT},\n{{ topic = "(", permissions = ["publish"] }}]',
        7,
        "the pattern '(' is not valid: missing ): (; allowed: a pattern in the syntax of RE2",
    ),
    (
        (
            f'{HEAD}grants = [\n{{ topic = "a{{2}}", permissions = ["publish"] }}, # {{\n'
            '{ topic = "^a", channels = [\n"^a", "["\n], permissions = ["publish"] }]'
        ),
        6,
        "the pattern '[' is not valid: ",
    ),
    (
        (
            f'{HEAD}[[key.grants]]\ntopic = "^a"\npermissions = ["publish"]\n[[key.grants]]\n'
            'topic = "^b"\npermissions = ["publish", "root"]'
        ),
        9,
        "permissions is 'root'; allowed: publish, subscribe, watch, admin",
    ),
    (
        f'{HEAD}grants = [{{ topic = "^a", permissions = ["subscribe", "admin"] }}]',
        4,
        (
            "channels of a grant of the key 'a': it is missing, and without it subscribe and admin "
            'would allow nothing; add channels = [".*"] for all channels'
        ),
    ),
    (f'{HEAD}grants = [{{ permissions = ["admin"] }}]', 4, "grant 1 of key 1 has no `topic`"),
    (f'{HEAD}grants = [{{ topic = "a" }}]', 4, "grant 1 of key 1 has no `permissions`; add it"),
    (f'{HEAD}grants = [{{ topic = "a", x = 1 }}]', 4, "unknown key 'x'; allowed: topic, channels"),
    # Rules.
    (f"{KEY}[[rule]]\ngrants = {ALL}", 5, "rule 1 has no `when`, and so would hold for every"),
    (f"[[rule]]\nwhen = {{}}\ngrants = {ALL}", 1, "rule 1 has no `when`, and so would hold"),
    (f"[[rule]]\nwhen = 1\ngrants = {ALL}", 2, "when is 1; allowed: claims, such as"),
    (f"[[rule]]\nwhen = {{ a = [1] }}\ngrants = {ALL}", 2, "a is [1]; allowed: a text, a whole"),
    (f"[[rule]]\nwhen = {{ a = 1.5 }}\ngrants = {ALL}", 2, "a is 1.5; allowed: a text, a whole"),
    (f"[[rule]]\n[rule.when]\nb = 1\na = {{}}\ngrants = {ALL}", 4, "a is {}; allowed: a text"),
    (f'[[rule]]\nissuer = "x"\ngrants = {ALL}', 2, "issuer is 'x'; allowed: an issuer of this"),
    (f"[[rule]]\nwhen = {{ a = 1 }}\ngrant = {ALL}", 3, "unknown key 'grant' (did you mean grants"),
]


@pytest.mark.parametrize("text,line,problem", ERRORS)
def test_an_error_has_the_line_and_what_to_do(text: str, line: int, problem: str) -> None:
    with pytest.raises(AccessFileRefused) as caught:
        read_policy(text.encode(), "a.toml")

    error = caught.value
    assert problem in error.problem
    assert line == error.line
    assert str(error).startswith(f"a.toml, line {line}: ")
    assert str(error).endswith("; correct the file, and check it with: nsq-gateway access check")
    assert len(str(error)) < 700


def test_a_key_in_place_of_its_hash_is_not_shown() -> None:
    with pytest.raises(AccessFileRefused) as caught:
        policy('[[key]]\nname = "a"\nsha256 = "nsq_oops"')

    assert "nsq_oops" not in str(caught.value)


def test_a_file_that_is_not_utf8_has_the_line_of_the_byte() -> None:
    with pytest.raises(AccessFileRefused, match=r"line 3: byte 6 is not UTF-8; save the file as"):
        read_policy(b"#\n# a\n\xff")


def test_windows_newlines_count_once() -> None:
    with pytest.raises(AccessFileRefused, match="line 4: "):
        policy(f"{KEY}x = 1".replace("\n", "\r\n").replace("x = 1", "").replace("grants", "grant"))


def test_a_deeply_nested_access_file_is_refused() -> None:
    with pytest.raises(AccessFileRefused):
        policy("a = " + "[" * 100_000)


def test_a_large_file_is_read_in_linear_time() -> None:
    """Twice the keys took four times as long when each line was counted from the begin."""

    def seconds(count: int) -> float:
        text = "".join(
            f'[[key]]\nname = "{i}"\nsha256 = "{i:064x}"\ngrants = [{GRANT}]\n'
            for i in range(count)
        )
        began_at = time.process_time()
        assert count == len(policy(text).keys)
        return time.process_time() - began_at

    few = min(seconds(500) for _ in range(3))
    assert seconds(4_000) < 40 * few


def test_grants_of_a_file_and_of_a_token_mean_the_same() -> None:
    found = policy(f"{ISSUER}grants_claim = 'nsq'\n{KEY}")
    (issuer,) = found.issuers.values()
    (key,) = found.keys.values()
    claim = [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish", "admin"]}]

    assert key.identity.rights.grants == found.rights(issuer, {"nsq": claim}).grants
    assert isinstance(key.identity.rights.grants[0], Grant)


def test_the_twenty_first_unanchored_pattern_is_only_counted() -> None:
    topics = ", ".join(f'{{ topic = "t{n}", permissions = ["publish"] }}' for n in range(23))
    warnings = policy(f'[[key]]\nname = "a"\nsha256 = "{SHA}"\ngrants = [{topics}]').warnings

    assert 21 == len(warnings)
    assert "access file: 3 more patterns match anywhere in a name" == warnings[-1]


def test_an_error_in_a_long_inline_array_has_its_line() -> None:
    entries = [
        f'  {{ name = "k{n}", sha256 = "{n:064x}", grants = [{{ topic = "^t$", '
        f'permissions = ["{"publish" if n != 2_998 else "write"}"] }}] }},'
        for n in range(1, 3_000)
    ]
    with pytest.raises(AccessFileRefused) as refused:
        policy("\n".join(["key = [", *entries, "]"]))

    assert 2_999 == refused.value.line
