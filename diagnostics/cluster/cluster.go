// Package cluster reads objects from the API server for the operators' commands, page by page.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// PageSize is how many objects one request asks for.
const PageSize = 500

const (
	// requestTimeout bounds one request, with its answer's body, unless the user says otherwise.
	requestTimeout = 10 * time.Second
	// qps is enough to look at the pods of 20 nodes three times a second.
	qps = 100
)

// NewClient returns a client that gives each request the config's Timeout, or else 10 s.
func NewClient(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	// Lists of many pods are decoded several times faster than as JSON.
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS, config.Burst, config.Timeout = qps, 2*qps, cmp.Or(config.Timeout, requestTimeout)
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

// list is a pointer to a list of objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// All lists objects and returns what keep makes of each, without those for which keep returns false. It reads a list that expires once more from
// its beginning.
func All[L list, T, R any](
	ctx context.Context, page func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, keep func(*T) (R, bool),
) (out []R, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		objects, err := page(ctx, o)
		if err == nil && o.Continue != "" && objects.GetContinue() == o.Continue {
			err = errors.New("the API server sends the same page again")
		}
		return objects, err
	})
	pages.PageSize = PageSize
	read := func() error {
		out = []R{}
		return pages.EachListItem(ctx, o, func(object runtime.Object) error {
			one, ok := any(object).(*T)
			if !ok {
				return fmt.Errorf("the list has a %T", object)
			}
			if kept, ok := keep(one); ok {
				out = append(out, kept)
			}
			return nil
		})
	}
	if err = read(); apierrors.IsResourceExpired(err) {
		err = read()
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Nodes lists the node of a name, or all for "", without the images that are on them, which take much of the memory.
func Nodes(ctx context.Context, client kubernetes.Interface, name string) ([]corev1.Node, error) {
	o := metav1.ListOptions{}
	if name != "" {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	return All(ctx, client.CoreV1().Nodes().List, o, func(n *corev1.Node) (corev1.Node, bool) {
		n.Status.Images = nil
		return *n, true
	})
}

// LastSeen returns when an event happened the last time.
func LastSeen(e *corev1.Event) time.Time {
	last := e.EventTime.Time
	if e.LastTimestamp.After(last) {
		last = e.LastTimestamp.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	if last.IsZero() {
		last = e.CreationTimestamp.Time
	}
	return last
}
