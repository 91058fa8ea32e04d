package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// probe is one connection or datagram, as testdata/probes-*.json has it.
type probe struct {
	ID    string `json:"id"`
	Dst   string `json:"dst"`
	Port  uint16 `json:"port"`
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Proto string `json:"proto"`
	Src   string `json:"src"`

	from string // the namespace: pod, world or vm
}

func (p probe) row() string { return p.from + "/" + p.ID }

// configuration is a column: what the pod asks for, its address families, and who must answer each probe.
type configuration struct {
	name     string
	families string // "4", "6" or "ds"
	spec     iptables.Spec
	want     map[string]string
}

// rules are what a backend is to program.
func (c configuration) rules(t *testing.T) iptables.Ruleset {
	t.Helper()
	r, err := iptables.Rules(c.spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readProbes(t *testing.T) []probe {
	t.Helper()
	var all []probe
	for _, from := range []string{"pod", "world", "vm"} {
		var some []probe
		if err := json.Unmarshal(read(t, "probes-"+from+".json"), &some); err != nil {
			t.Fatal(err)
		}
		for _, p := range some {
			p.from = from
			all = append(all, p)
		}
	}
	return all
}

func readConfigurations(t *testing.T) []configuration {
	t.Helper()
	var all []configuration
	for line := range strings.Lines(string(read(t, "families.txt"))) {
		name, families, _ := strings.Cut(strings.TrimSpace(line), "|")
		all = append(all, configuration{name: name, families: families, spec: readSpec(t, name), want: map[string]string{}})
	}
	lines := strings.Split(strings.TrimRight(string(read(t, "behaviour.tsv")), "\n"), "\n")
	head := strings.Split(lines[0], "\t")[1:]
	for _, line := range lines[1:] {
		cells := strings.Split(line, "\t")
		for i, c := range all {
			if head[i] != c.name {
				t.Fatalf("column %d is %s, want %s", i, head[i], c.name)
			}
			if cell := cells[i+1]; cell != "" {
				c.want[cells[0]] = cell
			}
		}
	}
	return all
}

func readSpec(t *testing.T, name string) iptables.Spec {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal(read(t, filepath.Join("pods", name+".json")), &pod); err != nil {
		t.Fatal(err)
	}
	in, err := intent.Of(&pod, nil, intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()})
	if err != nil || !in.Redirect {
		t.Fatalf("pod %s: redirect %v (%s), error %v", name, in.Redirect, in.Reason, err)
	}
	return in.Spec
}
