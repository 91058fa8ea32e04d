// Package cluster reads objects from the API server for the operators' commands, page by page.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
) ([]R, error) {
	out, err := pages(ctx, page, o, keep)
	if apierrors.IsResourceExpired(err) {
		out, err = pages(ctx, page, o, keep)
	}
	return out, err
}

func pages[L list, T, R any](
	ctx context.Context, page func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, keep func(*T) (R, bool),
) ([]R, error) {
	out := []R{}
	o.Limit = PageSize
	for {
		objects, err := page(ctx, o)
		if err != nil {
			return nil, err
		}
		err = meta.EachListItem(objects, func(object runtime.Object) error {
			one, ok := any(object).(*T)
			if !ok {
				return fmt.Errorf("the list has a %T", object)
			}
			if kept, ok := keep(one); ok {
				out = append(out, kept)
			}
			return nil
		})
		switch next := objects.GetContinue(); {
		case err != nil:
			return nil, err
		case next == "":
			return out, nil
		case next == o.Continue:
			return nil, errors.New("the API server sends the same page again")
		default:
			o.Continue = next
		}
	}
}
