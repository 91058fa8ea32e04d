package sidecars

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
)

// allow changes the names to which pods may connect.
func (n *fakeNode) allow(m *Manager, names string, pods ...string) {
	n.change(func() {
		n.spaces = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{intent.KeyEgressNames: names}}}
	})
	for _, uid := range pods { // as the watch of namespaces does
		m.Follow(sandboxOf(uid))
	}
	n.after(time.Minute)
}

// mustAllow wants a pod's proxy of an epoch to serve with a list of names.
func (n *fakeNode) mustAllow(t *testing.T, m *Manager, uid string, epoch uint32, names string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Homes.Of(sandboxOf(uid).Key()).Epoch(epoch).Files(), "names"))
	if said := n.said[uid]; err != nil || string(text) != names || !said.Ready || said.Epoch != epoch || said.Restarts != 0 {
		t.Errorf("%s: the file has %q, error %v, and the ManagedProxy says %+v", uid, text, err, said)
	}
}

// Running proxies are replaced when their namespace allows other names. A list that is wrong leaves them the last one, and keeps new pods from having
// a proxy.
func TestNamespace_allowsOtherNames_proxiesAreReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Files = []v1alpha1.File{{Name: "names", Template: `{{ range .Namespace.EgressNames }}{{ .Name }};{{ end }}`}}
		m, stop := agent()
		defer stop()
		pods := []string{"u1", "u2", "u3", "u4"}
		n.allow(m, "a.example", pods...)
		n.mustAllow(t, m, "u1", 0, "a.example;")
		n.allow(m, "a.example,b.example", pods...)
		n.mustAllow(t, m, "u4", 1, "a.example;b.example;")
		n.allow(m, "a.example,b.example", pods...)
		n.mustAllow(t, m, "u4", 1, "a.example;b.example;")

		n.allow(m, "a.example, 192.0.2.1", append(pods, "new")...)
		n.mustAllow(t, m, "u4", 1, "a.example;b.example;")
		for _, uid := range []string{"u1", "u4", "new"} {
			want := "annotation " + intent.KeyEgressNames + ` of namespace shop: value "a.example, 192.0.2.1": item 2, "192.0.2.1", is an address`
			if said := n.said[uid]; said.Ready != (uid != "new") || !strings.Contains(said.Message, want) {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		if len(n.running()) != len(pods) {
			t.Errorf("%d proxies run", len(n.running()))
		}
		n.allow(m, "c.example", append(pods, "new")...)
		for _, uid := range append(pods, "new") {
			n.mustAllow(t, m, uid, n.said[uid].Epoch, "c.example;")
		}
	})
}

// A version of the profile that reads the names first, where a namespace's list is wrong, is no version that fails: other namespaces get it.
func TestNamespace_listWrongBeforeItIsRead_pausesNobody(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		m, stop := agent()
		defer stop()
		pods := []string{"u1", "u2", "u3", "u4"}
		n.allow(m, "*", pods...)
		n.change(func() {
			n.profile.Spec.Files = []v1alpha1.File{{Name: "names", Template: `{{ range .Namespace.EgressNames }}{{ .Name }};{{ end }}`}}
		})
		n.changeTo(m, 2)
		n.after(time.Minute)
		for _, uid := range pods {
			if said := n.said[uid]; !said.Ready || said.Image != image(1) || !strings.Contains(said.Message, `"*" is not allowed here`) {
				t.Errorf("%s: %+v", uid, said)
			}
		}
		if m.Rollout.Paused("edge") {
			t.Error("the profile is paused")
		}
		n.allow(m, "c.example", pods...)
		for _, uid := range pods {
			n.mustAllow(t, m, uid, n.said[uid].Epoch, "c.example;")
		}
	})
}
