package controllers

import (
	"context"
	"net/http"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readsOfNode are the requests that a node may make, too: lists, watches and single ones of pods and Nodes.
var readsOfNode = regexp.MustCompile(`/api/v1/(nodes|pods|namespaces/[^/]+/pods)(/[^/]+)?$`)

// AsNode has the agent read pods and Nodes as its node, by the verbs impersonate:associated-node and impersonate-on:associated-node:VERB (KEP-5284, on
// from Kubernetes 1.36): the API server then shows it the node's own pods and Node, and no others. Everything else it asks as itself.
func AsNode(node string, next http.RoundTripper) http.RoundTripper { return asNode{node, next} }

type asNode struct {
	node string
	next http.RoundTripper
}

// RoundTrip sends a request.
func (a asNode) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && readsOfNode.MatchString(r.URL.Path) {
		r = r.Clone(r.Context())
		r.Header.Set("Impersonate-User", "system:node:"+a.node)
	}
	return a.next.RoundTrip(r)
}

// PodsOfNode returns a reader that gets a pod by a list of its name and node: the API server refuses a node a pod that it does not have, whether there
// is one or not.
func PodsOfNode(node string, from client.Reader) client.Reader { return podsOfNode{from, node} }

type podsOfNode struct {
	client.Reader

	node string
}

// Get gets an object.
func (p podsOfNode) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	pod, ok := into.(*corev1.Pod)
	if !ok {
		return p.Reader.Get(ctx, key, into, o...)
	}
	list := &corev1.PodList{}
	wanted := fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", key.Name), fields.OneTermEqualSelector("spec.nodeName", p.node))
	if err := p.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingFieldsSelector{Selector: wanted}); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	list.Items[0].DeepCopyInto(pod)
	return nil
}
