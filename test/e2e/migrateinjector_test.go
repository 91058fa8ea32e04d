package e2e

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// injector stands for istiod: it adds the proxy to the pods of one namespace, and in front of it the container that programs the pod, or,
// with pilot.cni.enabled, the one that tests whether somebody has.
type injector struct {
	*httptest.Server
	cni atomic.Bool // pilot.cni.enabled
}

func (s *space) inject(t *testing.T, cni bool) *injector {
	t.Helper()
	i := &injector{}
	i.cni.Store(cni)
	i.Server = httptest.NewTLSServer(http.HandlerFunc(i.review))
	t.Cleanup(i.Close)
	none, fail, again := registrationv1.SideEffectClassNone, registrationv1.Fail, registrationv1.NeverReinvocationPolicy
	configurations := s.api.AdmissionregistrationV1().MutatingWebhookConfigurations()
	url := i.URL
	_, err := configurations.Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "injector.e2e.example", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail, ReinvocationPolicy: &again,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.name}},
			ClientConfig: registrationv1.WebhookClientConfig{
				URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}),
			},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, configurations.Delete(cleanup(t), s.name, metav1.DeleteOptions{})) })
	return i
}

func (i *injector) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	if json.NewDecoder(r.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &pod) != nil {
		http.Error(w, "not a pod", http.StatusBadRequest)
		return
	}
	injectSidecar(&pod, i.cni.Load())
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec/initContainers", "value": pod.Spec.InitContainers},
		{"op": "add", "path": "/spec/volumes", "value": pod.Spec.Volumes},
		{"op": "add", "path": "/metadata/annotations", "value": pod.Annotations},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	kind := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: patch, PatchType: &kind}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review) // the API server reports a missing answer
}

// injectSidecar adds the containers. The application's template names its mode, and how istio-init is to program it.
func injectSidecar(pod *corev1.Pod, cni bool) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[keyInjected] = `{"initContainers":["istio-proxy"],"containers":null,"volumes":null,"imagePullSecrets":null,"revision":"default"}`
	first := proxyContainer(validation, "validate")
	if !cni {
		first = initContainer(pod)
		pod.Spec.Volumes = append(pod.Spec.Volumes, rulesVolume())
	}
	pod.Spec.InitContainers = append([]corev1.Container{first, sidecarContainer(pod)}, pod.Spec.InitContainers...)
}

// initContainer is istio-init.
func initContainer(pod *corev1.Pod) corev1.Container {
	m := migrantOf(pod)
	root, yes := int64(0), true
	return corev1.Container{
		Name: "istio-init", Image: "localhost/tools:1", Command: []string{"sh", "/istio/program.sh", m.mode, m.flavour},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &root, RunAsGroup: &root, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "istio-rules", MountPath: "/istio"}},
	}
}

func rulesVolume() corev1.Volume {
	return corev1.Volume{Name: "istio-rules", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "istio-rules"}},
	}}
}

// sidecarContainer is the proxy, native and ready before the application. The proxy of a canary takes no redirected connection.
func sidecarContainer(pod *corev1.Pod) corev1.Container {
	m := migrantOf(pod)
	args := []string{"proxy", "sidecar"}
	if m.canary {
		args = append(args, "-outbound=25001", "-inbound=25006")
	}
	proxy := proxyContainer("istio-proxy", args...)
	if m.mode == tproxyMode {
		proxy = asRoot(proxyContainer("istio-proxy", append(args, "-transparent")...), "NET_ADMIN")
	}
	always := corev1.ContainerRestartPolicyAlways
	proxy.RestartPolicy = &always
	proxy.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz/ready", Port: intstr.FromInt32(int32(journalPort))},
	}}
	return proxy
}
