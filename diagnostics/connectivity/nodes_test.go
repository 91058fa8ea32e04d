package connectivity

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestNodes_choose_spreadsTheSample(t *testing.T) {
	notReady := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	windows := func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" }
	virtual := func(n *corev1.Node) { n.Labels["type"] = "virtual-kubelet" }
	var cluster []corev1.Node
	for _, n := range []*corev1.Node{
		node("n5", nil), node("n1", nil), node("n2", nil), node("n3", nil), node("n4", nil), node("n6", nil), node("off", notReady), node("w", windows), node("v", virtual),
	} {
		cluster = append(cluster, *n)
	}
	for value, want := range map[string][]string{
		"all": {"n1", "n2", "n3", "n4", "n5", "n6"}, "": {"n1", "n3", "n5"}, "2": {"n1", "n4"}, "99": {"n1", "n2", "n3", "n4", "n5", "n6"}, "n3,n1,n3": {"n1", "n3"},
	} {
		nodes, err := ParseNodes(value)
		if err != nil {
			t.Fatal(err)
		}
		have, err := nodes.choose(cluster)
		if diff := cmp.Diff(want, have); diff != "" || err != nil {
			t.Errorf("%q: %v %s", value, err, diff)
		}
	}
	for _, name := range []string{"off", "w", "nobody"} {
		if have, err := (Nodes{Names: []string{name}}).choose(cluster); err == nil {
			t.Errorf("%s: chosen %v", name, have)
		}
	}
	if have, err := (Nodes{All: true}).choose(nil); err == nil {
		t.Errorf("chosen %v of no node", have)
	}
}

func TestParseNodes_hostileNames_areRefused(t *testing.T) {
	for _, value := range []string{"0", "-1", "a b", "a,,b", ",", "../x", "n1;rm", "ALL", "-n", "a\x1b[2J", strings.Repeat("a", 300)} {
		if nodes, err := ParseNodes(value); err == nil {
			t.Errorf("--nodes %q: %+v", value, nodes)
		}
	}
	for name, change := range map[string]func(*Tester){
		"a namespace with a path":     func(t *Tester) { t.Namespace = "../kube-system" },
		"a namespace in capitals":     func(t *Tester) { t.Namespace = "Prod" },
		"an image with a blank":       func(t *Tester) { t.Image = "image --privileged" },
		"an image with a line's end":  func(t *Tester) { t.Image = "image\nhostNetwork: true" },
		"an image that is too long":   func(t *Tester) { t.Image = strings.Repeat("a", 600) },
		"an unknown selection":        func(t *Tester) { t.Select = "everything" },
		"no time for the rules":       func(t *Tester) { t.Wait = 0 },
		"more time than the pods get": func(t *Tester) { t.Wait = time.Hour },
	} {
		tester := newTester(nil)
		if change(tester); tester.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := newTester(nil).Validate(); err != nil {
		t.Error(err)
	}
}
