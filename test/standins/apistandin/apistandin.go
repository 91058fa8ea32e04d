// Package apistandin answers lists of pods, nodes and namespaces as an API server does, for tests of commands that only read.
package apistandin

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Server is an http.Handler. Its fields must not change while it serves.
type Server struct {
	Pods       []corev1.Pod
	Nodes      []corev1.Node
	Namespaces []corev1.Namespace
	// Forbids reports whether the asker lacks the right to a resource of a namespace, or of the cluster if that is empty. nil: never.
	Forbids func(resource, namespace string) bool
	// JSON has it answer in JSON, as what stands before an API server may do, and not in protobuf.
	JSON bool
	// Fails, which may be nil, returns an error to answer with in place of the list, or nil.
	Fails func(r *http.Request) *apierrors.StatusError

	requests atomic.Int64
}

// Requests returns how many requests were answered.
func (s *Server) Requests() int { return int(s.requests.Load()) }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	resource, namespace, name := parse(r.URL.Path)
	if s.Fails != nil {
		if err := s.Fails(r); err != nil {
			s.send(w, int(err.ErrStatus.Code), &err.ErrStatus)
			return
		}
	}
	group := schema.GroupResource{Resource: resource}
	if s.Forbids != nil && s.Forbids(resource, namespace) {
		s.send(w, http.StatusForbidden, &apierrors.NewForbidden(group, name, nil).ErrStatus)
		return
	}
	if name != "" {
		i := slices.IndexFunc(s.Namespaces, func(ns corev1.Namespace) bool { return ns.Name == name })
		if resource != "namespaces" || i < 0 {
			s.send(w, http.StatusNotFound, &apierrors.NewNotFound(group, name).ErrStatus)
			return
		}
		s.send(w, http.StatusOK, s.Namespaces[i].DeepCopy()) // encoding writes to it
		return
	}
	s.list(w, r, resource, namespace)
}

// parse takes a path such as /api/v1/namespaces/NAMESPACE/pods apart.
func parse(path string) (resource, namespace, name string) {
	parts := strings.Split(strings.TrimPrefix(path, "/api/v1/"), "/")
	switch len(parts) {
	case 3:
		return parts[2], parts[1], ""
	case 2:
		return parts[0], parts[1], parts[1]
	}
	return parts[0], "", ""
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	switch resource {
	case "pods":
		items, meta := page(r, filter(s.Pods, r, func(pod *corev1.Pod) (metav1.Object, fields.Set) {
			return pod, fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}
		}, namespace))
		s.send(w, http.StatusOK, &corev1.PodList{ListMeta: meta, Items: items})
	case "nodes":
		items, meta := page(r, filter(s.Nodes, r, func(node *corev1.Node) (metav1.Object, fields.Set) {
			return node, fields.Set{"metadata.name": node.Name}
		}, ""))
		s.send(w, http.StatusOK, &corev1.NodeList{ListMeta: meta, Items: items})
	case "namespaces":
		items, meta := page(r, s.Namespaces)
		s.send(w, http.StatusOK, &corev1.NamespaceList{ListMeta: meta, Items: items})
	default:
		s.send(w, http.StatusNotFound, &apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "").ErrStatus)
	}
}

// filter returns the objects that the selectors of a request choose.
func filter[T any](all []T, r *http.Request, of func(*T) (metav1.Object, fields.Set), namespace string) (out []T) {
	byFields, err1 := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	byLabels, err2 := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err1 != nil || err2 != nil {
		return nil
	}
	for i := range all {
		object, has := of(&all[i])
		if (namespace == "" || namespace == object.GetNamespace()) && byFields.Matches(has) && byLabels.Matches(labels.Set(object.GetLabels())) {
			out = append(out, all[i])
		}
	}
	return out
}

// page returns the part of a list that a request asks for. What continues it is the number of objects before.
func page[T any](r *http.Request, all []T) (items []T, meta metav1.ListMeta) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit <= 0 {
		return all, meta
	}
	start, err := strconv.Atoi(r.URL.Query().Get("continue"))
	if err != nil {
		start = 0
	}
	end := min(start+limit, len(all))
	if end < len(all) {
		meta.Continue = strconv.Itoa(end)
	}
	return all[start:end], meta
}

func (s *Server) send(w http.ResponseWriter, code int, object runtime.Object) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	codecs := serializer.NewCodecFactory(scheme)
	kind := runtime.ContentTypeProtobuf
	if s.JSON {
		kind = runtime.ContentTypeJSON
	}
	as, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), kind)
	data, err := runtime.Encode(codecs.EncoderForVersion(as.Serializer, corev1.SchemeGroupVersion), object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(data) //nolint:gosec // objects of a test
}
