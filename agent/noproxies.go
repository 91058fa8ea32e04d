//go:build nosidecars

package agent

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspectserver"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/nri"
)

// proxies has no methods: nothing is run.
type proxies any

func addProxies(_ *agent, _ manager.Manager, _ controllers.Reader, _ func(s podnet.Sandbox, reason, message string)) (proxies, func(*controllers.Programmer), error) {
	return nil, func(*controllers.Programmer) {}, nil
}

func newProxyAccess(*agent) inspectserver.ProxyAccess { return nil }

func proxyKinds(Options) []client.Object { return nil }

func keptProxyName(runtime.Object) string { return "" }

func mapProxyKinds(*meta.DefaultRESTMapper) {}

func addProxyKinds(*runtime.Scheme) error { return nil }

func (ensurer) stopped(context.Context, podnet.Sandbox, nri.Container) error { return nil }
