package agent

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/kubelet"
)

// podSource is where the agent takes the pods of its node from: the API server, unless it is opened. It is controllers.KubeletPods.
type podSource struct {
	mode   kubelet.Mode
	client *kubelet.Client // nil: only the API server is asked
	source atomic.Pointer[kubelet.Source]
}

// open makes it ask the kubelet, if the options say so.
func (p *podSource) open(o Options) (err error) {
	if p.mode = kubelet.Mode(o.PodsFrom); p.mode != kubelet.API {
		p.client, err = kubelet.NewClient(o.KubeletSocket)
	}
	return err
}

// over returns an informer's source of pods. api is the API server's.
func (p *podSource) over(api *toolscache.ListWatch) *toolscache.ListWatch {
	if p.client == nil {
		return api
	}
	source := kubelet.NewSource(p.client, p.mode, api, controllers.StripPod)
	p.source.Store(source)
	return &toolscache.ListWatch{ListWithContextFunc: source.ListWithContext, WatchFuncWithContext: source.WatchWithContext}
}

// state returns where pods come from now.
func (p *podSource) state() kubelet.State {
	switch source := p.source.Load(); {
	case source != nil:
		return source.State()
	case p.client == nil:
		return kubelet.State{From: kubelet.API}
	}
	return kubelet.State{}
}

// fromKubelet reports whether pods come from the kubelet now.
func (p *podSource) fromKubelet() bool { return p.state().From == kubelet.Kubelet }

// Pod returns a pod as the kubelet has it now. asked is false if the API server is to be asked instead.
func (p *podSource) Pod(ctx context.Context, uid string) (pod *corev1.Pod, asked bool, err error) {
	return p.ask(func() (*corev1.Pod, error) { return p.client.Pod(ctx, uid) })
}

// Named returns the newest pod with a name as the kubelet has it now.
func (p *podSource) Named(ctx context.Context, namespace, name string) (pod *corev1.Pod, asked bool, err error) {
	return p.ask(func() (*corev1.Pod, error) { return p.client.Named(ctx, namespace, name) })
}

func (p *podSource) ask(question func() (*corev1.Pod, error)) (pod *corev1.Pod, asked bool, err error) {
	if p.client == nil || p.mode == kubelet.Auto && !p.fromKubelet() {
		return nil, false, nil
	}
	pod, err = question()
	asked = err == nil || errors.Is(err, podnet.ErrNoPod) || p.mode == kubelet.Kubelet
	return pod, asked, err
}

// metrics returns metrics of the source.
func (p *podSource) metrics() []prometheus.Collector {
	var out []prometheus.Collector
	for _, from := range []kubelet.Mode{kubelet.Kubelet, kubelet.API} {
		out = append(out, gaugeOf(controllers.MetricPrefix+"pod_source", "1 for where the node's pods come from: kubelet or api.",
			prometheus.Labels{"source": string(from)}, func() bool { return p.state().From == from }))
	}
	return append(out,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: controllers.MetricPrefix + "kubelet_last_event_timestamp_seconds", Help: "When the kubelet said something of its pods last, in seconds since 1970. 0: never.",
		}, func() float64 {
			if at := p.state().Heard; !at.IsZero() {
				return float64(at.UnixMilli()) / 1000
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: controllers.MetricPrefix + "pod_source_changes_total", Help: "How often the node's pods came from another source than before.",
		}, func() float64 { return float64(p.state().Moves) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: controllers.MetricPrefix + "kubelet_missed_changes_total", Help: "Changes of pods that the kubelet's events have left out, and a new list has shown.",
		}, func() float64 { return float64(p.state().Missed) }),
	)
}
