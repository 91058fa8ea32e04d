package controllers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

const foreignLine = "nftables, table inet x, chain c (output, priority -310) drops"

func TestEnsure_foreignRules_failOrWarnBySetting(t *testing.T) {
	for name, c := range map[string]struct {
		flag, namespace, pod string
		warns                bool
	}{
		"nobody says":                     {},
		"the flag":                        {flag: "warn", warns: true},
		"the namespace":                   {namespace: "warn", warns: true},
		"the namespace, against the flag": {flag: "warn", namespace: "fail"},
		"the pod cannot":                  {pod: "warn"},
		"the pod, against its namespace":  {namespace: "warn", pod: "fail", warns: true},
	} {
		b := newBench(t)
		if c.flag != "" {
			b.Config.Defaults[intent.SettingForeignRules] = c.flag
		}
		if c.namespace != "" {
			b.pods.ns.Annotations = map[string]string{intent.KeyForeignRules: c.namespace}
		}
		if c.pod != "" {
			b.pods.pod.Annotations[intent.KeyForeignRules] = c.pod
		}
		b.backend.preempted = []string{foreignLine, "another line"}
		b.ensure(t, Changed)
		got := b.lastReport(t)
		if c.warns {
			if got.Status != podreport.StatusInitialized || got.Reason != podreport.ReasonInitialized || !strings.HasPrefix(got.Notes, foreignNote+foreignLine+"; another line") {
				t.Errorf("%s: %+v", name, got)
			}
		} else if got.Status != podreport.StatusFailed || got.Reason != podreport.ReasonPreempted || strings.Contains(got.Notes, foreignLine) {
			t.Errorf("%s: %+v", name, got)
		}
		gauge := "# HELP istio_pod_network_controller_preempted_pods Pods in which rules of another program decide before ours.\n" +
			"# TYPE istio_pod_network_controller_preempted_pods gauge\nistio_pod_network_controller_preempted_pods 1\n"
		if err := testutil.GatherAndCompare(b.registry, strings.NewReader(gauge), "istio_pod_network_controller_preempted_pods"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.backend.preempted = nil
		b.ensure(t, Unchanged)
		if got := b.lastReport(t); got.Reason != podreport.ReasonInitialized || strings.Contains(got.Notes, foreignLine) {
			t.Errorf("%s, without such rules: %+v", name, got)
		}
	}
}

func TestEnsure_foreignRulesOfNamespaceIsWrong_saysWhatIsAllowed(t *testing.T) {
	b := newBench(t)
	b.pods.ns.Annotations = map[string]string{intent.KeyForeignRules: "maybe"}
	_, err := b.Ensure(t.Context(), Watch, b.sandbox)
	want := "annotation " + intent.KeyForeignRules + ` of namespace shop: value "maybe": want fail or warn`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// Accepted foreign rules make one event, and other notes of the pod do not repeat it.
func TestWriter_noteAboutForeignRules_makesOneEvent(t *testing.T) {
	api, recorder := &statusServer{pod: askingPod()}, events.NewFakeRecorder(100)
	w := NewWriter(api, api, recorder)
	for i, step := range []struct {
		preempted string
		settings  []string
		want      []string // begins of events
	}{
		{preempted: foreignLine, want: []string{"Warning RulesPreempted " + foreignNote + foreignLine}},
		{preempted: foreignLine},
		{preempted: foreignLine, settings: []string{"a setting"}, want: []string{"Warning " + podreport.ReasonNote + " a setting"}},
		{preempted: foreignLine},
		{settings: []string{"a setting"}, want: []string{"Warning " + podreport.ReasonNote + " a setting"}},
		{preempted: "another line", settings: []string{"a setting"}, want: []string{"Warning RulesPreempted " + foreignNote + "another line", "Warning " + podreport.ReasonNote + " a setting"}},
	} {
		found := Findings{Preempted: step.preempted, accepted: true}
		s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"}
		pod, _ := api.Pod(t.Context(), s) // never fails
		report := Report{Sandbox: s, Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized, Notes: found.notes(step.settings)}
		if err := w.write(t.Context(), report, pod); err != nil {
			t.Fatal(err)
		}
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("step %d: events %q, want %q", i, got, step.want)
		}
	}
}

func TestNotes_manyLines_leaveRoom(t *testing.T) {
	found := Findings{Preempted: strings.Repeat(foreignLine+"\n", 20) + foreignLine, accepted: true}
	got := found.notes([]string{"a setting"})
	first, rest, _ := strings.Cut(got, "\n")
	if len(first) > longestForeignNote+len("; and 20 more") || !strings.HasSuffix(first, " more") || rest != "a setting" {
		t.Errorf("%d bytes: %q, %q", len(first), first, rest)
	}
}
