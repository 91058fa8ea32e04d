package controllers

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/internal/podnet"
)

func TestReaderAsksTheServerForWhatTheCacheLacks(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{"a": "b"}}}
	old := askingPod()
	old.UID = "uid-0"
	r := Reader{
		Cache: fake.NewClientBuilder().WithObjects(old).Build(),
		Live:  fake.NewClientBuilder().WithObjects(askingPod(), ns).Build(),
	}
	pod, err := r.Pod(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"})
	if err != nil || pod.UID != "uid-1" {
		t.Errorf("pod %v, error %v", pod, err)
	}
	if _, err := r.Pod(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-7"}); !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("error %v", err)
	}
	got, err := r.Namespace(t.Context(), "shop")
	if err != nil || got.Annotations["a"] != "b" {
		t.Errorf("namespace %v, error %v", got, err)
	}
	if got, err := r.Namespace(t.Context(), "none"); got != nil || err != nil {
		t.Errorf("namespace %v, error %v", got, err)
	}
}

// Silence is not an answer: who asks must not take the pod for deleted.
func TestReaderTellsThatItCouldNotRead(t *testing.T) {
	down := unreadable()
	for name, r := range map[string]Reader{
		"the cache": {Cache: down, Live: fake.NewClientBuilder().Build()}, "the server": {Cache: fake.NewClientBuilder().Build(), Live: down},
	} {
		if _, err := r.Pod(t.Context(), podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-1"}); err == nil || absent(err) {
			t.Errorf("pod, %s: error %v", name, err)
		}
		if _, err := r.Namespace(t.Context(), "shop"); err == nil {
			t.Errorf("namespace, %s: no error", name)
		}
	}
}

func TestReaderGivesTheUIDOfThePodThatStays(t *testing.T) {
	leaving, predecessor := askingPod(), askingPod()
	leaving.UID, leaving.DeletionTimestamp, leaving.Finalizers = "uid-0", new(metav1.Now()), []string{"test/test"}
	predecessor.UID = "uid-0"
	live := fake.NewClientBuilder().WithObjects(askingPod()).Build()
	for name, c := range map[string]struct {
		cached *corev1.Pod
		live   client.Reader
		want   string
	}{
		"a predecessor is leaving":                             {leaving, live, "uid-1"},
		"the cache does not know that the predecessor is gone": {predecessor, live, "uid-1"},
		"the API server is away":                               {askingPod(), unreadable(), "uid-1"},
		"the API server is away, and so is the pod":            {leaving, unreadable(), ""},
	} {
		r := Reader{Cache: fake.NewClientBuilder().WithObjects(c.cached).Build(), Live: c.live}
		if got, err := r.UID(t.Context(), "shop", "cart"); got != c.want || (err == nil) != (c.want != "") || absent(err) {
			t.Errorf("%s: UID %q, error %v", name, got, err)
		}
	}
}

// unreadable returns a client whose reads fail.
func unreadable() client.Reader {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no")
		},
	})
}
