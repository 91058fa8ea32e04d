package commands

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// 5,000 pods are read in pages, and in less than 3 s. The first run has the server make its answers, which the others get again: the time is the
// command's, and the shortest counts on a busy machine.
func TestStatusOf5000Pods(t *testing.T) {
	const many = 5000
	s := oneNode()
	for i := range many {
		s.Pods = append(s.Pods, largePod(i))
	}
	answers := &recorded{from: s, answers: map[string]*httptest.ResponseRecorder{}}
	file := kubeconfigOf(t, answers)
	took := time.Hour
	for range 3 {
		began := time.Now()
		code, out, errOut := call(t, "", "status", "-A", "--kubeconfig", file)
		took = min(took, time.Since(began))
		if code != 0 || !strings.Contains(out, "5000 pods in all namespaces: 5000 programmed.") {
			t.Fatalf("code %d, %.300s %s", code, out, errOut)
		}
	}
	before := len(answers.answers)
	if _, out, _ := call(t, "", "status", "-A", "--problems", "--kubeconfig", file); len(answers.answers) != before || len(out) > 100 {
		t.Errorf("for problems: %d requests instead of %d, %.200s", len(answers.answers), before, out)
	}
	t.Logf("took %s, %d requests, %d bytes", took, len(answers.answers), answers.bytes())
	if len(answers.answers) != many/500+1+3 {
		t.Errorf("%d requests", len(answers.answers))
	}
	if took > 3*time.Second && !raceDetector() {
		t.Errorf("it took %s", took)
	}
}

// raceDetector reports whether the test looks for data races, which takes several times as long.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// recorded answers as another handler did the first time.
type recorded struct {
	from    http.Handler
	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder
}

func (h *recorded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	answer, ok := h.answers[r.URL.String()]
	if !ok {
		answer = httptest.NewRecorder()
		h.from.ServeHTTP(answer, r)
		h.answers[r.URL.String()] = answer
	}
	h.mu.Unlock()
	w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
	_, _ = w.Write(answer.Body.Bytes())
}

func (h *recorded) bytes() (n int) {
	for _, answer := range h.answers {
		n += answer.Body.Len()
	}
	return n
}

// largePod is a pod of some 8 KB, as they are in clusters.
func largePod(i int) corev1.Pod {
	pod := reportedPod(fmt.Sprintf("cart-%d", i), "Initialized", "traffic is redirected")
	for range 3 {
		c := corev1.Container{Name: "app", Image: "registry.example.com/shop/cart:v1"}
		for k := range 20 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: strings.Repeat("x", 40)})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"a":"` + strings.Repeat("f", 3000) + `"}`)}}
	return pod
}
