package controllers

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/randfill"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// Whatever a pod has, the cache holds the same of it with and without trimmed watches.
func TestATrimmedPodIsStrippedToTheSame(t *testing.T) {
	for seed := range int64(300) {
		pod := filledPod(t, seed)
		trimmed := throughWatch(t, pod)
		want, errWant := stripPod(pod)
		got, err := stripPod(trimmed)
		if diff := cmp.Diff(want, got); errWant != nil || err != nil || diff != "" {
			t.Fatalf("seed %d: error %v, a trimmed watch changes what is kept (-want +got):\n%s", seed, err, diff)
		}
		if full, less := size(t, pod), size(t, trimmed); less > full*2/3 {
			t.Errorf("seed %d: %d bytes of %d are left", seed, less, full)
		}
	}
}

// filledPod returns a pod with something in every field, and in some of them what the agent reads.
func filledPod(t *testing.T, seed int64) *corev1.Pod {
	t.Helper()
	fill := randfill.NewWithSeed(seed).NilChance(0.2).NumElements(1, 3).MaxDepth(12)
	pod := &corev1.Pod{}
	fill.Funcs(
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawBytes([]byte(`{"f:metadata":{"f:labels":{}}}`)) },
		func(m *metav1.Time, c randfill.Continue) { *m = metav1.Unix(c.Int63n(1<<31), 0) },
		func(v *corev1.EnvVar, c randfill.Continue) {
			v.Name, v.Value = c.String(0), c.String(0)
			if c.Bool() {
				v.Name = "ISTIO_META_DNS_CAPTURE"
			}
		},
	)
	fill.Fill(pod)
	pod.TypeMeta = metav1.TypeMeta{}
	pod.Annotations = map[string]string{intent.KeyInitialize: "true", podreport.KeyStatus: "initialized", staticPrefix + "hash": "x", "sidecar.istio.io/inject": "true", "other": "y"}
	pod.Labels = map[string]string{"sidecar.istio.io/inject": "true", "app": "x"}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Name = intent.ProxyContainer
	}
	for i := range pod.Status.Conditions {
		if i%2 == 0 {
			pod.Status.Conditions[i].Type = podreport.Condition
		}
	}
	out := &corev1.Pod{}
	if err := out.Unmarshal(encoded(t, pod)); err != nil { // as any other watch would decode it
		t.Fatal(err)
	}
	return out
}

func encoded(t *testing.T, pod *corev1.Pod) []byte {
	t.Helper()
	text, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func size(t *testing.T, pod *corev1.Pod) int { t.Helper(); return len(encoded(t, pod)) }

type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) { return a(req) }

// throughWatch returns a pod as a trimmed watch has it.
func throughWatch(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: encoded(t, pod)}
	text, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	event := metav1.WatchEvent{Type: string(watch.Added), Object: runtime.RawExtension{Raw: append([]byte("k8s\x00"), text...)}}
	if text, err = event.Marshal(); err != nil {
		t.Fatal(err)
	}
	from := answer(func(*http.Request) (*http.Response, error) {
		body := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}},
			Body: io.NopCloser(bytes.NewReader(body)),
		}, nil
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := TrimPodWatch(from).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || len(got) < 4 || int(binary.BigEndian.Uint32(got)) != len(got)-4 {
		t.Fatalf("error %v, %d bytes", err, len(got))
	}
	var trimmed metav1.WatchEvent
	if err := trimmed.Unmarshal(got[4:]); err != nil {
		t.Fatal(err)
	}
	unknown = runtime.Unknown{}
	if err := unknown.Unmarshal(trimmed.Object.Raw[4:]); err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := out.Unmarshal(unknown.Raw); err != nil {
		t.Fatal(err)
	}
	if trimmed.Type != string(watch.Added) || reflect.DeepEqual(out, &corev1.Pod{}) {
		t.Fatalf("event %q, pod %v", trimmed.Type, out)
	}
	return out
}
