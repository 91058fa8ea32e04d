package admissiontest

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkWithInjector has a webhook that does as Istio's injector does: it adds the proxy after the policy's first turn, and puts
// its own init containers in front of all others.
func (s *server) checkWithInjector(t *testing.T) {
	s.addInjector(t)
	inject := label("inject", "yes")
	eventually(t, "the injector is called", func(ctx context.Context) error {
		created, err := s.create(ctx, shape{namespace: "silent", change: changes(inject)}.pod(), true)
		if err != nil {
			return err
		}
		if got := initContainers(created); !slices.Contains(got, "istio-proxy") || hasGate(created) {
			return fmt.Errorf("init containers %q, gates %q", got, gates(created))
		}
		return nil
	})
	for name, c := range map[string]struct {
		shape shape
		want  []string
	}{
		"its namespace asks": {
			shape{namespace: "asking", change: changes(inject, initContainer("migrate"))}, []string{waitName, "istio-validation", "istio-proxy", "migrate"},
		},
		"asks itself": {
			shape{namespace: "silent", change: changes(inject, initContainer("migrate"), annotate(initialize, "true"))},
			[]string{waitName, "istio-validation", "istio-proxy", "migrate"},
		},
		"opts out": {
			shape{namespace: "asking", change: changes(inject, annotate(initialize, "false"))}, []string{"istio-validation", "istio-proxy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := s.create(t.Context(), c.shape.pod(), false)
			must(t, err)
			same(t, c.want, initContainers(created), "init containers")
			if hasGate(created) != (c.want[0] == waitName) || len(gates(created)) > 1 {
				t.Errorf("gates %q", gates(created))
			}
		})
	}
}

func (s *server) addInjector(t *testing.T) {
	t.Helper()
	webhook := httptest.NewTLSServer(http.HandlerFunc(injector))
	t.Cleanup(webhook.Close)
	url, none := webhook.URL, registrationv1.SideEffectClassNone
	_, err := s.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "injector"},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "injector.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"inject": "yes"}},
			ClientConfig: registrationv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}),
			},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
}

func injector(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	if json.NewDecoder(r.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &pod) != nil {
		http.Error(w, "not a pod", http.StatusBadRequest)
		return
	}
	always := corev1.ContainerRestartPolicyAlways
	proxy := like(&pod, "istio-proxy")
	proxy.RestartPolicy = &always
	patch, err := json.Marshal([]map[string]any{{
		"op": "add", "path": "/spec/initContainers",
		"value": append([]corev1.Container{like(&pod, "istio-validation"), proxy}, pod.Spec.InitContainers...),
	}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	kind := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: patch, PatchType: &kind}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review) // the API server reports a missing answer
}
