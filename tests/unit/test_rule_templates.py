"""Templates of labels and annotations: what they give, which promtool gives too, and what they may not cost."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from coordinator.rules.go_text import GoDuration, printf
from coordinator.rules.templates import Sample, Surroundings, Template, TemplateError

LABELS = {"__name__": "m", "instance": "web.example.org:9100", "job": "node", "empty_": "x y"}
OTHERS = [
    Sample({"__name__": "other", "device": device, "job": "node"}, value)
    for device, value in (("b", 2.0), ("a", 1.5), ("c", -3.0))
]

CASES: list[tuple[str, float, str]] = [
    ("plain {{ $labels.instance }} of {{ .Labels.job }}", 1, "plain web.example.org:9100 of node"),
    ("{{ $value }} {{ .Value }}", 1e6, "1e+06 1e+06"),
    ("{{ $value }}", 123456, "123456"),
    ("{{ $value }}", 1234567, "1.234567e+06"),
    ("{{ $value }}", 0.00001234, "1.234e-05"),
    ("{{ $value }}", 0.0001, "0.0001"),
    ("{{ $value }}", -1234.5678, "-1234.5678"),
    ("{{ $value }}", 1e100, "1e+100"),
    ("{{ $value }}", 0, "0"),
    ("[{{ $labels.missing }}]", 1, "[]"),
    ("{{ $externalLabels.region }}{{ .ExternalLabels.region }}", 1, "eueu"),
    ("{{ humanize $value }}|{{ humanize1024 $value }}", 1234567, "1.235M|1.177Mi"),
    ("{{ humanize $value }}|{{ $value | humanize1024 }}", 0.0123, "12.3m|0.0123"),
    ("{{ humanize $value }}|{{ humanize1024 $value }}", 0, "0|0"),
    ("{{ $value | humanizeDuration }}", 93784.5, "1d 2h 3m 4s"),
    ("{{ $value | humanizeDuration }}", -3661.5, "-1h 1m 1s"),
    ("{{ $value | humanizeDuration }}", 59.987654, "59.99s"),
    ("{{ $value | humanizeDuration }}", 0.0005, "500us"),
    ("{{ $value | humanizePercentage }}", 0.12345, "12.35%"),
    ("{{ $value | humanizeTimestamp }}", 1234.5678, "1970-01-01 00:20:34.567 +0000 UTC"),
    ('{{ printf "%.2f %5.1f|%-8s|%q %v %s" $value $value "ab" "a\\"b" 5 "c" }}', 3.14159,
     '3.14   3.1|ab      |"a\\"b" 5 c'),
    ('{{ printf "%d %05d %+d %x %X" 5 5 5 255 255 }}', 1, "5 00005 +5 ff FF"),
    ('{{ printf "%d %s" $value $value }}', 2, "%!d(float64=2) %!s(float64=2)"),
    ('{{ printf "%e %g %G %t %%" $value $value $value true }}', 1500000, "1.500000e+06 1.5e+06 1.5E+06 true %"),
    ('{{ printf "%s %d" "a" }}{{ printf "a" 1 }}', 1, "a %!d(MISSING)a%!(EXTRA int=1)"),
    ('{{ printf "%08.3f|%-8v|%8v" $value $value $value }}', 3.14159, "0003.142|3.14159 | 3.14159"),
    ("{{ if gt $value 10.0 }}high{{ else if gt $value 5.0 }}middle{{ else }}low{{ end }}", 7, "middle"),
    ("{{ if and (gt $value 1.0) (lt $value 3.0) }}in{{ end }}", 2, "in"),
    ('{{ if or (eq $labels.job "a" "node") false }}yes{{ end }}', 2, "yes"),
    ('{{ if not (ne $labels.job "node") }}same{{ end }}', 2, "same"),
    ("{{ with $labels.job }}job {{ . }}{{ end }}{{ with $labels.none }}x{{ else }} none{{ end }}", 1, "job node none"),
    ("a {{- 1 -}} b {{/* a comment */}} c {{- /* another */ -}} d", 1, "a1b  cd"),
    ("{{ if $x := 0.0 }}a{{ else }}{{ $x }}{{ end }}{{ with $y := `` }}a{{ else }}b{{ $y }}{{ end }}", 1, "0b"),
    ("{{ $x := $value }}{{ if true }}{{ $x = 5.5 }}{{ end }}{{ $x }}", 1, "5.5"),
    ('{{ range query "other" | sortByLabel "device" }}{{ .Labels.device }}={{ .Value }};{{ end }}', 1,
     "a=1.5;b=2;c=-3;"),
    ('{{ range $i, $s := query "other" | sortByLabel "device" }}{{ $i }}{{ $s.Labels.device }}{{ end }}', 1, "0a1b2c"),
    ('{{ with query "other" | sortByLabel "device" }}{{ . | first | value }} {{ . | first | label "device" }}{{ end }}',
     1, "1.5 a"),
    ('{{ range query "nothing" }}x{{ else }}none{{ end }}', 1, "none"),
    ('{{ range query "other" }}{{ if eq .Labels.device "b" }}{{ break }}{{ end }}{{ .Value }}{{ end }}', 1, "1.5"),
    ('{{ query "other" | len }} {{ len $labels.job }}', 1, "3 4"),
    ('{{ title "ab cd" }} {{ toUpper "ab" }} {{ toLower "AB" }}', 1, "Ab Cd AB ab"),
    ('{{ toUpper "große ŉ" }} {{ toLower "ΟΔΟΣ İ" }}', 1, "GROßE ŉ οδοσ i"),
    ('{{ match "^n.de$" $labels.job }} {{ match "x" $labels.job }}', 1, "true false"),
    ('{{ reReplaceAll "(.*)\\\\.(.*):.*" "$2-${1}" $labels.instance }}', 1, "org-web.example"),
    ('{{ stripPort $labels.instance }} {{ stripDomain $labels.instance }} {{ stripPort "[::1]:80" }}', 1,
     "web.example.org web:9100 ::1"),
    ('{{ stripDomain "10.0.0.1:80" }} {{ stripPort "plain" }}', 1, "10.0.0.1:80 plain"),
    ('{{ parseDuration "1h30m" }} {{ parseDuration "5m" | humanizeDuration }}', 1, "5400 5m 0s"),
    ('{{ graphLink "up == 0" }} {{ tableLink "up" }}', 1,
     "/graph?g0.expr=up+%3D%3D+0&g0.tab=0 /graph?g0.expr=up&g0.tab=1"),
    ("{{ $value | toTime }}", 86400, "1970-01-02 00:00:00 +0000 UTC"),
    ('{{ reReplaceAll "(.*)" "pre-$1" $labels.job }} {{ reReplaceAll "o*" "-" $labels.job }}', 1, "pre-node -n-d-e-"),
    ('{{ reReplaceAll "x*" "-" "é" }} {{ reReplaceAll "" "-" "ab" }} {{ reReplaceAll "$" "!" "é" }}', 1,
     "-é- -a-b- é!"),
    ('{{ reReplaceAll "(a)" "<$0,$1,${1},$01,${01},$00,$2>" "ab" }}', 1, "<a,a,a,,,,>b"),
    ('{{ reReplaceAll "(?P<01>b)" "<$01>" "ab" }}', 1, "a<b>"),
    ('{{ printf "%c%c%c" 97 55296 1114112 }}', 1, "a\ufffd\ufffd"),
    ('{{ ($value | toTime).Format "2006-01-02 15:04" }}', 90000, "1970-01-02 01:00"),
    ("{{ print 1 2 }} {{ print `a` 1 `b` }} {{ println 5 }}", 1, "1 2 a1b 5\n"),
    ('{{ index $labels "job" }} {{ slice "abcdef" 1 3 }}', 1, "node bc"),
    ('{{ urlquery "a b&c" }} {{ html "<a>" }}', 1, "a+b%26c &lt;a&gt;"),
    ("{{ .Labels.job | printf `%s-%s` `x` }}", 1, "x-node"),
    ("{{ true }} {{ 0x10 }} {{ 1e3 }} {{ 'a' }}", 1, "true 16 1000 97"),
]  # fmt: skip


def expanded(text: str, value: float = 1.0) -> str:
    def query(expr: str) -> list[Sample]:
        return sorted(OTHERS, key=lambda sample: sample.labels["device"]) if expr == "other" else []

    return Template.of(text).expand(LABELS, value, Surroundings(query, {"region": "eu"}, "http://here/p"))


@pytest.mark.parametrize(("text", "value", "expected"), CASES)
def test_a_template_gives_what_it_gives_in_prometheus(text: str, value: float, expected: str) -> None:
    assert expanded(text, float(value)) == expected


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_gives_the_same(tmp_path: Path) -> None:
    served = [case for case in CASES if "break" not in case[0]]  # since a later version
    rules = [
        {"alert": f"A{n}", "expr": f'm{{case="{n}"}}', "annotations": {"a": text}, "labels": {"region": "eu"}}
        for n, (text, _, _) in enumerate(served)
    ]
    labels = {name: text for name, text in LABELS.items() if name != "__name__"}
    shown = ",".join(f'{name}="{text}"' for name, text in labels.items())
    series = [
        {"series": f'm{{case="{n}",{shown}}}', "values": f"{value!r}x2"} for n, (_, value, _) in enumerate(served)
    ]
    series += [{"series": f'other{{device="{s.labels["device"]}"}}', "values": f"{s.value}x2"} for s in OTHERS]
    expected = [
        {
            "eval_time": "1m",
            "alertname": f"A{n}",
            "exp_alerts": [{"exp_labels": {**labels, "case": str(n), "region": "eu"}, "exp_annotations": {"a": text}}],
        }
        for n, (_, _, text) in enumerate(served)
    ]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": expected, "external_labels": {"region": "eu"}}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ $value", "not closed with }}"),
        ("{{ nothing 1 }}", "function 'nothing' is not defined"),
        ("{{ $other }}", "variable '$other' is not defined"),
        ("{{ if true }}{{ $x := 1 }}{{ else }}{{ $x }}{{ end }}", "variable '$x' is not defined"),
        ("{{ if $x := 1 }}{{ else }}{{ end }}{{ $x }}", "variable '$x' is not defined"),
        ("{{ if true }}", "if is not closed with end"),
        ("{{ end }}", "unexpected end"),
        ("{{ else }}", "unexpected else"),
        ("{{ if true }}{{ else }}{{ else }}{{ end }}", "unexpected else"),
        ("{{ }}", "a command is missing"),
        ("{{ 1 2 }}", "what is no function has arguments"),
        ("{{ 1 | 2 }}", "only a function can follow |"),
        ("{{ (1 }}", "a parenthesis is not closed"),
        ("{{ define `x` }}{{ end }}", "define is not served"),
        ("{{ break }}", "break outside of range"),
        ("{{ $a, $b := 1 }}", "2 variables are assigned at once"),
        ('{{ "a }}', "unexpected"),
        ('{{ "\\ud800" }}', "is not a literal"),
        ("{{ " + "(" * 50 + "1" + ")" * 50 + " }}", "nested more than"),
        ("{{ if true }}" * 50, "nested more than"),
        ("{{ 1 }}" + "x" * 70_000, "the limit is"),
    ],
)
def test_what_is_no_template_is_named(text: str, why: str) -> None:
    with pytest.raises(TemplateError) as refused:
        Template.of(text)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{{ query "nothing" | first }}', "first() called on vector with no elements"),
        ('{{ humanize "x" }}', "'x' is not a number"),
        ("{{ humanize }}", "wrong number of arguments for humanize"),
        ("{{ $value.x }}", "can't evaluate field x"),
        ('{{ match "(" "a" }}', "is not a regular expression"),
        ("{{ gt $labels.job 1.0 }}", "incompatible types"),
        ("{{ range $value }}{{ end }}", "can't iterate"),
        ('{{ printf "%1000000d" 1 }}', "a width of more than"),
        ("{{ 1e30 | humanizeTimestamp }}", "cannot be represented as a time"),
        ("{{ index $labels 1 }}", "is not a text"),
        ("{{ toTime 1e18 }}", "cannot be represented as a time"),
        ('{{ toDuration "NaN" }}', "NaN"),
        ('{{ "{x}".Format "a" }}', "Format is no method"),
        ('{{ "{0:>300000000}".Format "a" }}', "Format is no method"),
        ('{{ $labels.job.Format "a" }}', "Format is no method"),
    ],
)
def test_what_cannot_be_expanded_is_named(text: str, why: str) -> None:
    with pytest.raises(TemplateError) as refused:
        expanded(text)
    assert why in str(refused.value)


LOOP = '{{ $x := "aaaaaaaaaaaaaaaa" }}' + "{{ $x = print $x $x }}" * 400
NESTED = '{{ range query "other" }}' * 30 + "x" + "{{ end }}" * 30
REPLACE = '{{ $x := printf "%1000s" "a" }}' + "{{ $x = reReplaceAll ` ` `" + "$0" * 120 + "` $x }}" * 300
REGEX = '{{ $x := printf "%1000s" "a" }}' + "{{ if match `(.*)(.*)(.*)(.*)(.*)[a-z]{500}x` $x }}{{ end }}" * 300

MAPS = "{{ $x := args 1 1 }}" + "{{ $x = args $x $x }}" * 60 + "{{ $x }}"
MAPS_OFTEN = "{{ $x := args 1 1 }}" + "{{ $x = args $x $x }}" * 10 + "{{ if print $x }}{{ end }}" * 2400


@pytest.mark.parametrize(
    "text",
    [LOOP, NESTED, REPLACE, REGEX, MAPS, MAPS_OFTEN, "{{ query `other` }}" * 21, "{{ $labels }}" * 5000],
)
def test_the_worst_template_is_cheap(text: str) -> None:
    started = time.thread_time()
    with suppress(TemplateError):
        assert len(expanded(text)) <= 256 << 10
    assert time.thread_time() - started < 2


def test_a_template_stops_at_its_deadline() -> None:
    started = time.monotonic()
    around = Surroundings(lambda expr: [time.sleep(0.01) or Sample({}, 1.0)], deadline=started + 0.05)
    with pytest.raises(TemplateError, match="take too long"):
        Template.of('{{ query "x" }}' * 20).expand({}, 1.0, around)
    assert time.monotonic() - started < 0.15


def test_durations_are_written_as_go_writes_them() -> None:
    shown = [str(GoDuration(seconds)) for seconds in (0, 1.5, 90, 3661, 0.0015, -2)]
    assert shown == ["0s", "1.5s", "1m30s", "1h1m1s", "1.5ms", "-2s"]
    assert printf("%v", [GoDuration(60)]) == "1m0s"
