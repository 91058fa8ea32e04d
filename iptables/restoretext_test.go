package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goldenFile compares text with a file of testdata, or writes it there when asked to.
func goldenFile(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Error(d)
	}
}

func bothFamilies() map[string]uint32 { return map[string]uint32{"v4": IPv4, "v6": IPv6} }

func TestRestoreTextIsGolden(t *testing.T) {
	for name, spec := range goldenSpecs() {
		for suffix, family := range bothFamilies() {
			t.Run(name+"/"+suffix, func(t *testing.T) {
				goldenFile(t, name+"."+suffix+".rules", mustRules(t, spec).RestoreText(family))
			})
		}
	}
}

// What iptables itself would refuse, or silently take for something else, must not come out of any spec.
func TestRestoreTextKeepsToWhatIptablesTakes(t *testing.T) {
	for seed := range uint64(200) {
		spec := randomSpec(seed)
		for p := range uint16(seed % 64) {
			spec.ExcludeOutboundPorts = append(spec.ExcludeOutboundPorts, 7*p)
		}
		rules := mustRules(t, spec)
		for _, family := range bothFamilies() {
			for line := range strings.Lines(rules.RestoreText(family)) {
				if _, list, ok := strings.Cut(line, "--dports "); ok && strings.Count(strings.Fields(list)[0], ",") >= maxMultiport {
					t.Fatalf("seed %d: more than %d ports in %s", seed, maxMultiport, line)
				}
				if strings.Count(line, "--dport ") > 1 || strings.Count(line, " -d ") > 1 || strings.Contains(line, "/0 ") {
					t.Fatalf("seed %d: not what iptables-save would print: %s", seed, line)
				}
			}
		}
	}
}

// The rendering relies on both: it cuts no names, and has no way to write an excepted set as one rule.
func TestNoRuleExceptsASetAndNoNameIsTooLong(t *testing.T) {
	for name, spec := range someSpecs() {
		for _, c := range mustRules(t, spec).Chains {
			if chain := c.restoreName(); len(chain) > 28 {
				t.Errorf("chain %s has a name of %d characters", chain, len(chain))
			}
			for _, rule := range c.Rules {
				if slices.ContainsFunc(rule.Conds, func(c Cond) bool { return c.Set != "" && c.Not }) {
					t.Errorf("%s: a set is excepted: %s", name, rule.Text())
				}
			}
		}
	}
}

func TestRestoreTextWritesEverythingOfASet(t *testing.T) {
	spec := DefaultSpec()
	for i := range 40 {
		spec.ExcludeOutboundPorts = append(spec.ExcludeOutboundPorts, uint16(20000+i))
		spec.ExcludeCIDRs = append(spec.ExcludeCIDRs, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", i)))
	}
	text := mustRules(t, spec).RestoreText(IPv4)
	for i := range 40 {
		if !strings.Contains(text, fmt.Sprint(20000+i)) || !strings.Contains(text, fmt.Sprintf("-d 10.%d.0.0/16 ", i)) {
			t.Fatalf("port or prefix %d is missing in\n%s", i, text)
		}
	}
	if n := strings.Count(text, `"excluded outbound ports"`); n != 9 { // 41 ports, twice in the nat table and behind it
		t.Errorf("%d rules for 41 ports", n)
	}
}

func TestCommentsAreQuotedAsIptablesSaveDoes(t *testing.T) {
	for in, want := range map[string]string{
		"one-word_1": "one-word_1", "two words": `"two words"`, "the proxy's": `"the proxy\'s"`, `a "b" \`: `"a \"b\" \\"`, "": `""`, "a.b": `"a.b"`,
	} {
		if got := Quoted(in); got != want {
			t.Errorf("%q became %s, want %s", in, got, want)
		}
	}
}

func TestTextDriftNamesLines(t *testing.T) {
	want := "*nat\n-A X -j RETURN\n-A X -j DROP\nCOMMIT\n"
	if d := TextDrift(want, want); len(d) != 0 {
		t.Errorf("equal texts differ: %s", d)
	}
	got := TextDrift(want, strings.Replace(want, "DROP", "ACCEPT", 1)).String()
	if got != "- -A X -j DROP\n+ -A X -j ACCEPT" {
		t.Error(got)
	}
	if got := TextDrift("a\n", "").String(); got != "- a" {
		t.Error(got)
	}
}
