package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each page of docs about moving here is followed word for word on a cluster without the agent. Connections are made in both directions all
// the time: to the pods of before until the page replaces them, to their Service while it does, and none may be lost, or bypass the proxy.
//
// None is parallel: they remove the agent.

// migration is what all pages have in common.
type migration struct {
	*guide
	migrants, canaries []migrant
	caught             *catcher
	watched            []*watched
	services           []serviceLoad
}

// newMigration takes the agent away. Deployments are made by the test, which knows who programs their pods.
func newMigration(t *testing.T, annotations map[string]string, migrants ...migrant) *migration {
	t.Helper()
	s := newSpace(t, annotations)
	s.uninstallAgent(t)
	m := &migration{guide: s.newGuide(t), migrants: migrants, caught: catchAll(t)}
	for _, one := range migrants {
		one.canary = true
		m.canaries = append(m.canaries, one)
	}
	return m
}

// watchAll starts the load on the pods of before.
func (m *migration) watchAll(t *testing.T) {
	t.Helper()
	for _, one := range m.canaries {
		m.podOf(t, one)
	}
	for _, one := range m.migrants {
		m.wantCaptured(t, one)
	}
	for _, one := range m.migrants {
		m.watched = append(m.watched, m.watchPod(t, one))
	}
}

// leave ends the load on the pods of before, which are about to be replaced, and starts the one on their Services.
func (m *migration) leave(t *testing.T) {
	t.Helper()
	for _, w := range m.watched {
		w.wantKept(t)
	}
	for _, one := range m.migrants {
		m.services = append(m.services, m.loadService(t, one))
	}
}

// arrive ends the load on the Services, and wants the pods of now to have the agent's rules and no others.
func (m *migration) arrive(t *testing.T) {
	t.Helper()
	for _, l := range m.services {
		l.wantKept(t)
	}
	for _, one := range slices.Concat(m.migrants, m.canaries) {
		m.wantReason(t, one, "Initialized")
		if rules := m.listRules(t, m.podOf(t, one)); strings.Contains(strings.ToLower(rules), "istio") {
			t.Errorf("pod of %s still has Istio's rules:\n%s", one.name(), rules)
		}
	}
	for _, one := range m.migrants {
		m.wantCaptured(t, one)
	}
	m.caught.wantNone(t)
	m.wantDialling(t, m.canaries[0])
}

// wantDialling opens a canary, which then reaches the world: it has dialled all the time.
func (m *migration) wantDialling(t *testing.T, canary migrant) {
	t.Helper()
	m.annotate(t, m.podOf(t, canary).Name, map[string]any{keyInitialize: "false"})
	eventually(t, "a connection past the proxy", func(context.Context) error {
		if m.caught.none() {
			return errors.New("there is none")
		}
		return nil
	})
}

// wantReasons waits until all pods of before say why they were left alone.
func (m *migration) wantReasons(t *testing.T, want string) {
	t.Helper()
	for _, one := range slices.Concat(m.migrants, m.canaries) {
		m.wantReason(t, one, want)
	}
}

func (m *migration) deployAll(t *testing.T) {
	t.Helper()
	for _, one := range slices.Concat(m.migrants, m.canaries) {
		m.deploy(t, one.deployment(m.caught.port))
	}
}

//e2e:rounds nri
func TestMigrateFromTheControllerBefore(t *testing.T) {
	m := newMigration(t, asked(), migrant{mode: redirectMode, flavour: byIptables}, migrant{mode: tproxyMode, flavour: byIptables})
	m.controller2018(t)
	for _, one := range slices.Concat(m.migrants, m.canaries) {
		m.deploy(t, injected2018(one.deployment(m.caught.port)))
	}
	m.watchAll(t)
	// A pod that starts when the old controller is gone waits until its template is changed.
	late := migrant{redirectMode, native, true}
	m.after["remove"] = func() { m.deploy(t, injected2018(late.deployment(m.caught.port))) }
	m.after["install"] = func() {
		m.wantReasons(t, "NotRequired")
		m.awaitInInit(t, late)
		m.canaries = append(m.canaries, late)
	}
	m.before["templates"] = func() { m.leave(t) }
	m.follow(t, "migrate-2018-controller.md")
	m.arrive(t)
	m.wantListed(t, "list", "Initialized")
	if got := m.podOf(t, m.migrants[1]).Annotations[keyMode]; got != "TPROXY" {
		t.Errorf("the mode is %q, which was a label before", got)
	}
}

// awaitInInit waits until the first init container of a migrant's pod runs.
func (m *migration) awaitInInit(t *testing.T, one migrant) {
	t.Helper()
	eventually(t, "the pod of "+one.name()+" in its init container", func(ctx context.Context) error {
		list, err := m.pods().List(ctx, metav1.ListOptions{LabelSelector: "app=" + one.name()})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		if c := list.Items[0].Status.InitContainerStatuses; len(c) != 1 || c[0].State.Running == nil || hasRun(&list.Items[0]) {
			return fmt.Errorf("its containers are %+v", list.Items[0].Status)
		}
		return nil
	})
}

// wantListed wants a step to have printed a line with a word for each pod of the application.
func (m *migration) wantListed(t *testing.T, step, word string) {
	t.Helper()
	list, err := m.pods().List(context.WithoutCancel(t.Context()), metav1.ListOptions{FieldSelector: "status.phase=" + string(corev1.PodRunning)})
	must(t, err)
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp != nil {
			continue
		}
		found := false
		for line := range strings.Lines(m.printed[step]) {
			found = found || strings.Contains(line, list.Items[i].Name) && strings.Contains(line, word)
		}
		if !found {
			t.Errorf("step %s says not %q of pod %s, but:\n%s", step, word, list.Items[i].Name, m.printed[step])
		}
	}
}
