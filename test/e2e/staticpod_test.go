package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kubelet reads a static pod from a file and makes a mirror of it, whose UID is another one than the sandbox's. A pod that
// asks is programmed all the same, or its mirror says why not.
//
//e2e:rounds nftables nri
func TestStaticPodIsProgrammedOrToldWhyNot(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	pod := meshPod("static", asked())
	mirror := s.runStatic(t, pod)
	told := s.await(t, mirror, func(pod *corev1.Pod) error {
		if err := isReadyNow(pod); err != nil { // its proxy answers
			return err
		}
		if status := pod.Annotations[keyStatus]; status == "" && conditionOf(pod).Type == "" {
			return errors.New("nobody has said anything")
		}
		return nil
	})
	if told.Annotations[keyStatus] == statusInitialized {
		eventually(t, "an answer of its proxy, which has no probe", func(ctx context.Context) error {
			var c map[string]count
			return ask(ctx, told, "/counts", &c)
		})
		wantInbound(t, told, families()[0], appPort, true)
	} else if c := conditionOf(told); c.Message == "" && readDetails(t, told).Message == "" {
		t.Errorf("it is not redirected, and nobody says why: %+v", c)
	}
	// Once: an agent that goes on asking would write, or log, without end.
	if told.Annotations[keyStatus] != statusInitialized {
		s.wantQuiet(t)
	}
}

// runStatic has the kubelet read a pod from a file for as long as the test runs, and returns the name of its mirror.
func (s *space) runStatic(t *testing.T, pod *corev1.Pod) (mirror string) {
	t.Helper()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Namespace = s.name
	text, err := json.Marshal(pod)
	must(t, err)
	file := filepath.Join(s.node.NodeRoot, "etc/kubernetes/manifests", s.name+".json")
	must(t, os.MkdirAll(filepath.Dir(file), 0o750))
	must(t, os.WriteFile(file, text, 0o600))
	mirror = pod.Name + "-" + s.node.NodeName
	t.Cleanup(func() {
		must(t, os.Remove(file))
		eventually(t, "the end of the static pod", func(ctx context.Context) error {
			_, err := s.pods().Get(ctx, mirror, metav1.GetOptions{})
			if err == nil {
				return errors.New("its mirror is still there")
			}
			return nil
		})
	})
	return mirror
}

// wantQuiet wants an agent that has no pod to come back to.
func (s *space) wantQuiet(t *testing.T) {
	t.Helper()
	eventually(t, "an agent that does not ask again", func(ctx context.Context) error {
		m, err := s.readMetrics(ctx)
		if err == nil && m.sum("workqueue_depth") > 0 {
			err = fmt.Errorf("%v pods are waiting for it", m.sum("workqueue_depth"))
		}
		return err
	})
}
