package controllers

import (
	"context"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAsNode_impersonatesForReadsOfPodsAndNodesOnly(t *testing.T) {
	for request, want := range map[string]bool{
		"GET /api/v1/pods":                                        true,
		"GET /api/v1/nodes":                                       true,
		"GET /proxied/api/v1/pods":                                true,
		"GET /api/v1/namespaces/shop/pods":                        true,
		"GET /api/v1/namespaces/shop/pods/cart":                   true,
		"GET /api/v1/namespaces":                                  false,
		"GET /api/v1/namespaces/pods":                             false,
		"GET /api/v1/namespaces/shop/pods/cart/log":               false,
		"GET /api/v1/namespaces/shop/configmaps/pods":             false,
		"GET /apis/metrics.k8s.io/v1beta1/pods":                   false,
		"PATCH /api/v1/namespaces/shop/pods/cart/status":          false,
		"PATCH /api/v1/nodes/n1":                                  false,
		"POST /api/v1/namespaces/shop/serviceaccounts/cart/token": false,
	} {
		t.Run(request, func(t *testing.T) {
			var as string
			next := roundTrip(func(r *http.Request) (*http.Response, error) {
				as = r.Header.Get("Impersonate-User")
				return &http.Response{}, nil
			})
			method, path, _ := strings.Cut(request, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, "https://10.0.0.1"+path+"?watch=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := AsNode("n1", next).RoundTrip(r); err != nil || as == "system:node:n1" != want || r.Header.Get("Impersonate-User") != "" {
				t.Errorf("sent as %q, error %v", as, err)
			}
		})
	}
}

// listOnly is an API server that refuses to get a pod.
type listOnly struct {
	client.Reader

	asked string
	pods  []corev1.Pod
}

func (l *listOnly) List(_ context.Context, into client.ObjectList, o ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(o)
	l.asked = options.Namespace + " " + options.FieldSelector.String()
	into.(*corev1.PodList).Items = l.pods
	return nil
}

func TestPodsOfNode_getsByAListOfNameAndNode(t *testing.T) {
	api := &listOnly{pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "cart", UID: "u1"}}}}
	from, pod := PodsOfNode("n1", api), &corev1.Pod{}
	key := client.ObjectKey{Namespace: "shop", Name: "cart"}
	if err := from.Get(t.Context(), key, pod); err != nil || pod.UID != "u1" || api.asked != "shop metadata.name=cart,spec.nodeName=n1" {
		t.Errorf("pod %s, asked for %q, error %v", pod.UID, api.asked, err)
	}
	api.pods = nil
	if err := from.Get(t.Context(), key, pod); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not there: %v", err)
	}
}
