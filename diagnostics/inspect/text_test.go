package inspect

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

var update = flag.Bool("update", false, "write the golden files")

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// inOrder is the document of a pod that has what it asks for.
func inOrder() Document {
	return Document{
		Pod: "shop/cart-1", UID: "uid-1", Node: "node1", Time: now, Agent: Agent{Version: "0.1.0", Backend: "nftables", VerifyInterval: "10s"},
		Asked: Asked{
			Redirect: true, By: "annotation of the namespace: istio-pod-network-controller/initialize", Expected: true,
			Summary:  []string{"outbound: tcp to any address -> proxy, 15001"},
			Settings: []intent.Setting{{Name: "envoy-port", Value: "15001", Source: "default"}, {Name: "exclude-interfaces", Value: "", Source: "default"}, {Name: "exclude-inbound-ports", Value: "", Source: "annotation of the pod: traffic.sidecar.istio.io/excludeInboundPorts"}},
		},
		Reported: Reported{Status: "initialized", Condition: "True", Reason: "Initialized", Message: "traffic is redirected"},
		Programmed: Programmed{Sandbox: "s1", Backend: "nftables", Rules: []iptables.Line{
			{Chain: "outbound", Words: "tcp to any port -> proxy, 15001", Why: "to the proxy", Packets: new(uint64(12)), Bytes: new(uint64(720))},
			{Chain: "outbound", Words: "to 127.0.0.1 -> direct"},
			{Chain: "inbound", Words: "tcp to port 15008 -> direct", Packets: new(uint64(0)), Bytes: new(uint64(0))},
		}},
		Agreement: Agreement{Verdict: Agree},
		Events:    Events{Items: []Event{}},
	}
}

// edited returns a document that is in order but for an edit.
func edited(edit func(d *Document)) Document {
	d := inOrder()
	edit(&d)
	d.Next = Advise(d)
	return d
}

// mistyped adds a key that nobody reads to a document of an agent.
func mistyped(d Document) Document {
	d.AddMistyped([]string{"namespace shop: annotation traffic.sidecar.istio.io/excludeOutboundPort is not known: did you mean traffic.sidecar.istio.io/excludeOutboundPorts?"})
	return d
}

// documents are of every kind, by what they are about.
func documents() map[string]Document {
	out := map[string]Document{
		"mistyped": mistyped(edited(func(*Document) {})),
		"mistyped-not-asked": mistyped(edited(func(d *Document) {
			d.Asked = Asked{Reason: "neither the pod nor its namespace asks; annotate it"}
			d.Programmed.Rules, d.Programmed.Backend, d.Reported = nil, "", Reported{}
		})),
	}
	maps.Copy(out, documentsOfAgents())
	return out
}

// documentsOfAgents are what agents answer.
func documentsOfAgents() map[string]Document {
	return map[string]Document{
		"in-order":      edited(func(*Document) {}),
		"in-order-wide": edited(func(*Document) {}),
		"unused": edited(func(d *Document) {
			d.Programmed.Rules[0].Packets, d.Programmed.Rules[0].Bytes = new(uint64(0)), new(uint64(0))
		}),
		"no-listener": edited(func(d *Document) { d.Programmed.Unheard = []uint16{15001, 15006} }),
		"drift": edited(func(d *Document) {
			d.Agreement = Agreement{Verdict: Differ, Differences: []string{"- outbound: tcp dport 80 redirect to :15001"}}
			d.Events.Items = []Event{{now.Add(-90 * time.Second), "Warning", "RulesRepaired", "repaired the rules", 3}}
			d.Programmed.LastRepair = podreport.Repair{Time: "2026-11-22T11:58:30Z", Kinds: "rules"}
		}),
		"drift-unverified": edited(func(d *Document) {
			d.Agreement = Agreement{Verdict: Differ, Differences: []string{"- outbound"}}
			d.Agent.VerifyInterval = "0s"
		}),
		"contended": edited(func(d *Document) {
			d.Agreement = Agreement{Verdict: Differ, Differences: []string{"- outbound"}}
			d.Reported = Reported{"failed", "False", "Contended", "somebody keeps changing the rules"}
		}),
		"no-rules": edited(func(d *Document) {
			d.Programmed.Rules, d.Programmed.Backend = nil, ""
			d.Agreement = Agreement{Verdict: Differ, Differences: []string{"- table inet istio-pod-network-controller"}}
		}),
		"wrong-setting": edited(func(d *Document) {
			d.Asked = Asked{Expected: true, Invalid: `envoy-port: value "x": want a port from 1 to 65535`}
			d.Agreement.Kept = true
		}),
		"not-asked": edited(func(d *Document) {
			d.Asked = Asked{Reason: "neither the pod nor its namespace asks; annotate it"}
			d.Programmed.Rules, d.Programmed.Backend, d.Reported = nil, "", Reported{}
			d.Events.Error = "this takes the right to list events in namespace shop"
		}),
		"skipped": edited(func(d *Document) {
			d.Asked = Asked{Expected: true, Reason: "istio-init programs this pod's rules already; re-create the pod"}
			d.Programmed.Rules, d.Programmed.Backend = nil, ""
			d.Others = Others{Owner: "Istio", Found: "chain ISTIO_OUTPUT in table ip nat"}
		}),
		"preempted": edited(func(d *Document) { d.Others.Preempting = []string{"inet theirs early: tcp dport 80 drop"} }),
		"preempted-accepted": edited(func(d *Document) {
			d.Others.Preempting = []string{"inet theirs early drops"}
			d.Asked.Settings = append(d.Asked.Settings, intent.Setting{Name: intent.SettingForeignRules, Value: intent.ForeignRulesWarn, Source: "annotation of the namespace: " + intent.KeyForeignRules})
		}),
		"proxy-not-ready": edited(func(d *Document) {
			d.Asked.Profile, d.Agent.RunsProxies = "edge", true
			d.Reported = Reported{"initialized", "False", "ProxyNotReady", "traffic is redirected, and the proxy is not ready; see the pod's ManagedProxy"}
		}),
		"proxy-unattended": edited(func(d *Document) { d.Asked.Profile = "edge" }),
		"proxies-off": edited(func(d *Document) {
			d.Asked = Asked{Profile: "edge", Reason: "neither the pod nor its namespace asks; annotate it"}
			d.Programmed.Rules, d.Programmed.Backend, d.Reported = nil, "", Reported{}
		}),
		"proxy-refused": edited(func(d *Document) {
			d.Asked = Asked{Profile: "edge", Expected: true}
			d.Agent.RunsProxies = true
			d.Programmed.Rules, d.Programmed.Backend, d.Reported = nil, "", Reported{"failed", "False", "ProxyRefused", "there is no ProxyProfile \"edge\": create it, or choose another one"}
		}),
		"no-sandbox": edited(func(d *Document) {
			d.Programmed = Programmed{Absent: "find sandbox: no ready sandbox"}
			d.Agreement = Agreement{Verdict: Unknown, Error: d.Programmed.Absent}
		}),
		"kernel-silent": edited(func(d *Document) {
			d.Agreement = Agreement{Verdict: Unknown, Error: "the kernel has not answered: context deadline exceeded"}
		}),
		"hostile": edited(func(d *Document) {
			d.Reported.Message = "\x1b[2J\x1b[1;1Hall is well\r\nVerdict:\tin order\u202e"
			d.Asked.Settings[0].Value = strings.Repeat("9,", 5000)
		}),
	}
}

func TestTextForPeople(t *testing.T) {
	for name, doc := range documents() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := (Text{Now: now, Wide: name == "in-order-wide"}).Print(&out, doc); err != nil {
				t.Fatal(err)
			}
			wantFile(t, name+".txt", out.String())
			for line := range strings.SplitSeq(out.String(), "\n") {
				if strings.ContainsAny(line, "\x1b\r\b\u202e") || len(line) > 600 {
					t.Errorf("line %q", line)
				}
			}
		})
	}
}

// wantFile compares with a golden file.
func wantFile(t *testing.T, name, got string) {
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
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// Where the agent leaves a pod to another project it puts nothing back.
func TestWhatOthersHaveIsNotAwaited(t *testing.T) {
	d := inOrder()
	d.Others = Others{Owner: "Istio", Found: "chain ISTIO_OUTPUT"}
	d.Agreement = Agreement{Verdict: Differ, Differences: []string{"- outbound"}}
	if steps := Advise(d); len(steps) != 1 || !strings.Contains(steps[0], "keep Istio from programming the pod") {
		t.Errorf("%q", steps)
	}
}

func TestFailing(t *testing.T) {
	fails := []string{
		"proxies-off", "proxy-not-ready", "proxy-refused", "drift", "drift-unverified", "contended", "no-rules", "wrong-setting", "skipped", "preempted", "no-sandbox", "kernel-silent", "no-listener",
	}
	for name, doc := range documents() {
		if want := slices.Contains(fails, name); doc.Failing() != want {
			t.Errorf("%s: failing %v, want %v", name, doc.Failing(), want)
		}
		if len(doc.Next) == 0 {
			t.Errorf("%s: nothing to do next is said", name)
		}
	}
}

// The fields' names are what programs read.
func TestFieldsOfADocument(t *testing.T) {
	doc := inOrder()
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, "document.json", string(text)+"\n")
	again, err := ParseDocument([]byte(strings.Replace(string(text), "{", `{"newField": {"x": 1},`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(doc, again); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for _, wrong := range []string{"", "{}", "null", "[]", "<html>", `{"pod": 1}`} {
		if _, err := ParseDocument([]byte(wrong)); err == nil {
			t.Errorf("%q is read as a document", wrong)
		}
	}
}
