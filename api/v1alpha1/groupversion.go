// Package v1alpha1 holds the proxy manager's objects: ProxyProfile, which says how a proxy is run, and ManagedProxy, which says how one
// pod's proxy is.
//
// +kubebuilder:object:generate=true
// +groupName=pod-network-controller.istio.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of all objects.
const Group = "pod-network-controller.istio.io"

// GroupVersion returns the group and version of all objects.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme adds the objects to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &ProxyProfile{}, &ProxyProfileList{}, &ManagedProxy{}, &ManagedProxyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
