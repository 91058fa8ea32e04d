package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// Whoever wrote the annotation sees the pod, not the agent's log: all that is needed to mend it must be on the pod.
//
//e2e:rounds nftables
func TestWrongAnnotationIsToldAndCanBeMended(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	for name, c := range map[string]struct{ key, value, right, wantAllowed string }{
		"port-by-name":       {keyExcludeInbound, "9100,http", "9100", "ports from 0 to 65535"},
		"neither-yes-nor-no": {keyInitialize, "yes", "true", `"true" or "false"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.start(t, meshPod(name, map[string]string{c.key: c.value}))
			pod := s.await(t, name, hasStatus(statusFailed))
			for where, text := range map[string]string{
				"details": readDetails(t, pod).Message, "the condition": conditionOf(pod).Message, "the event": s.onlyWarning(t, pod).Message,
			} {
				for _, part := range []string{c.key, `"` + c.value + `"`, c.wantAllowed} {
					if !strings.Contains(text, part) {
						t.Errorf("%s: %q does not name %s", where, text, part)
					}
				}
			}
			if got := conditionOf(pod).Reason; got != "InvalidAnnotation" {
				t.Errorf("the condition's reason is %q, want InvalidAnnotation", got)
			}
			s.wantNoRules(t, pod)

			s.annotate(t, name, map[string]any{c.key: c.right})
			pod = s.await(t, name, hasStatus(statusInitialized))
			wantInbound(t, pod, families()[0], appPort, true)
			s.onlyWarning(t, pod)
		})
	}
}

// onlyWarning gives the agent's one event on the pod: the same fault is told once, however often it is met.
func (s *space) onlyWarning(t *testing.T, pod *corev1.Pod) corev1.Event {
	t.Helper()
	var event corev1.Event
	eventually(t, "the warning about "+pod.Name, func(ctx context.Context) error {
		list, err := s.api.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			"involvedObject.uid": string(pod.UID), "type": corev1.EventTypeWarning, "reason": "InvalidAnnotation",
		}.String()})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errors.New("there is none")
		}
		event = list.Items[0]
		if len(list.Items) > 1 || event.Series != nil {
			return fmt.Errorf("there are %d, the first with series %+v", len(list.Items), event.Series)
		}
		return nil
	})
	return event
}
