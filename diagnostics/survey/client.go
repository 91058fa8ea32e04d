package survey

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	// pageSize is how many objects one request asks for.
	pageSize = 500
	// requestTimeout bounds one request, with its answer's body.
	requestTimeout = 10 * time.Second
)

// Client reads pods, nodes and namespaces. It has no typed client of every API group, which is larger than the rest of the program.
type Client struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewClient returns a client that gives each request 10 s.
func NewClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Lists of many pods are decoded several times faster than as JSON.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS, config.Burst, config.Timeout = 50, 100, requestTimeout
	config.WarningHandler = rest.NoWarnings{}
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &Client{rest: c, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// query says which objects are listed: of one namespace, or of all if it is empty.
type query struct{ namespace, labels, fields string }

// pods calls each with every page of pods. If the list expires in between, it begins anew, and calls again first.
func (c *Client) pods(ctx context.Context, q query, again func(), each func([]corev1.Pod)) error {
	var list corev1.PodList
	err := c.pages(ctx, "pods", q, &list, func() { each(list.Items) })
	if apierrors.IsResourceExpired(err) {
		again()
		err = c.pages(ctx, "pods", q, &list, func() { each(list.Items) })
	}
	return err
}

func (c *Client) nodes(ctx context.Context, q query) (nodes []corev1.Node, err error) {
	var list corev1.NodeList
	err = c.pages(ctx, "nodes", q, &list, func() { nodes = append(nodes, list.Items...) })
	return nodes, err
}

func (c *Client) namespaces(ctx context.Context) (namespaces []corev1.Namespace, err error) {
	var list corev1.NamespaceList
	err = c.pages(ctx, "namespaces", query{}, &list, func() { namespaces = append(namespaces, list.Items...) })
	return namespaces, err
}

func (c *Client) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := c.rest.Get().Resource("namespaces").Name(name).Do(ctx).Into(ns)
	return ns, err
}

// list is a pointer to a list of objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// pages reads a list page by page into the same object, and calls page after each.
func (c *Client) pages(ctx context.Context, resource string, q query, into list, page func()) error {
	options := metav1.ListOptions{Limit: pageSize, LabelSelector: q.labels, FieldSelector: q.fields}
	for {
		err := c.rest.Get().NamespaceIfScoped(q.namespace, q.namespace != "").Resource(resource).
			VersionedParams(&options, c.parameters).Do(ctx).Into(into)
		if err != nil {
			return err
		}
		page()
		next := into.GetContinue()
		if next == "" {
			return nil
		}
		if next == options.Continue {
			return errors.New("list " + resource + ": the API server sends the same page again")
		}
		options.Continue = next
		reset(into)
	}
}

// reset empties a list: what is decoded into it is added to what it has.
func reset(into list) {
	switch l := into.(type) {
	case *corev1.PodList:
		*l = corev1.PodList{}
	case *corev1.NodeList:
		*l = corev1.NodeList{}
	case *corev1.NamespaceList:
		*l = corev1.NamespaceList{}
	}
}
