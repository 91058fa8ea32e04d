package admissiontest

import (
	"context"
	"testing"
)

// setsTLSMode has the agent set the label by which peers send mTLS to Istio's proxy, and no other one.
func (s *server) setsTLSMode(t *testing.T) {
	s.install(t, "proxies: {enabled: true, istio: {enabled: true, image: a}}")
	s.podOn(t, release, "agent-tls", "n1", release)
	s.podOn(t, "silent", "plain", "n1", "default")
	s.podOn(t, "silent", "far", "n2", "default")
	agent := s.client(t, s.token(t, "agent-tls"))
	labels := func(text string) string { return `{"metadata": {"labels": ` + text + `}}` }
	const istio, none = `{"security.istio.io/tlsMode": "istio"}`, `{"security.istio.io/tlsMode": null}`
	untilDenied(t, func(ctx context.Context) error {
		_, err := patch(ctx, agent, "plain", "status", labels(`{"a": "b"}`), true)
		return err
	}, "except for the label security.istio.io/tlsMode")
	const other = "the agent may change no label, finalizer or owner"
	for _, step := range []struct {
		what, pod, labels, denied string
	}{
		{"another value", "plain", `{"security.istio.io/tlsMode": "disabled"}`, other},
		{"a pod of another node", "far", istio, "the pod is not on the agent's node n1"},
		{"another label beside it", "plain", `{"security.istio.io/tlsMode": "istio", "a": "b"}`, other},
		{"another label changed", "plain", `{"app": "b"}`, other},
		{"another label taken away", "plain", `{"app": null}`, other},
		{"the label", "plain", istio, ""},
		{"the label again", "plain", istio, ""},
		{"the label changed", "plain", `{"security.istio.io/tlsMode": "disabled"}`, other},
		{"the label taken away", "plain", none, ""},
		{"what is not there", "plain", none, ""},
	} {
		t.Run(step.what, func(t *testing.T) {
			pod, err := patch(t.Context(), agent, step.pod, "status", labels(step.labels), false)
			if step.denied != "" {
				expectDenied(t, err, step.denied)
				return
			}
			has := ""
			if err == nil {
				has = pod.Labels["security.istio.io/tlsMode"]
			}
			if want := map[string]string{istio: "istio", none: ""}[step.labels]; err != nil || has != want || pod.Labels["app"] != "a" {
				t.Errorf("labels %v, error %v", pod.Labels, err)
			}
		})
	}
	if _, err := patch(t.Context(), s.admin, "plain", "", labels(`{"security.istio.io/tlsMode": "disabled"}`), false); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{istio, none} { // its owner's value stays
		_, err := patch(t.Context(), agent, "plain", "status", labels(text), true)
		expectDenied(t, err, other)
	}
	t.Run("what it denies without the label", func(t *testing.T) { testDenials(t, agent) })
}
