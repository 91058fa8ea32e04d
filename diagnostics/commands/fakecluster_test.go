package commands

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/test/standins/apistandin"
)

// kubeconfigOf returns the file of a kubeconfig that leads to an API server.
func kubeconfigOf(t *testing.T, server http.Handler) string {
	t.Helper()
	api := httptest.NewServer(server)
	t.Cleanup(api.Close)
	return kubeconfigTo(t, api.URL)
}

func kubeconfigTo(t *testing.T, url string) string {
	t.Helper()
	return write(t, "kubeconfig", fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: shop}}]
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: test, user: {token: abc}}]
`, url))
}

// oneNode is a cluster of one node, whose agent is fine, with pods of the namespace shop.
func oneNode(pods ...corev1.Pod) *apistandin.Server {
	status := agentstatus.Status{
		Version: cmdline.Build().Version, Revision: "abc", Backend: "nftables", Ready: true, Time: time.Now(),
		Hook: []agentstatus.Hook{{Name: "watch", Up: true}, {Name: "nri", Message: "away"}},
	}
	agent := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "mesh", Name: "agent", Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"},
			Annotations: map[string]string{agentstatus.Annotation: status.String()}, OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}},
		},
		Spec: corev1.PodSpec{NodeName: "node", HostNetwork: true},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	return &apistandin.Server{
		Pods:       append(pods, agent),
		Nodes:      []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
	}
}

// reportedPod returns a pod with a report.
func reportedPod(name, reason, message string) corev1.Pod {
	status := corev1.ConditionFalse
	if reason == podreport.ReasonInitialized {
		status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
			Annotations: map[string]string{podreport.KeyDetails: `{"hook":"nri","backend":"nftables","specHash":"cafe"}`},
		},
		Spec: corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: podreport.Condition, Status: status, Reason: reason, Message: message}},
		},
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
