package agent

import (
	"encoding/json"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/cniinstall"
)

// Chain says where the CNI configuration and binaries are, and how the plugin is configured.
type Chain struct {
	BinDir, ConfDir, Source string
	Plugin                  cni.Conf
}

// Installer returns an Installer, which puts the plugin into the chain and keeps it there. It logs each event, and passes it to
// notify, which may be nil.
func (c Chain) Installer(log logr.Logger, notify func(cniinstall.Event)) (*cniinstall.Installer, error) {
	entry, err := json.Marshal(c.Plugin)
	if err != nil {
		return nil, err
	}
	return cniinstall.New(cniinstall.Config{
		BinDir: c.BinDir, ConfDir: c.ConfDir, Source: c.Source, Entry: entry, Versions: cni.Versions(),
		Notify: func(e cniinstall.Event) {
			logCNI(log, e)
			if notify != nil {
				notify(e)
			}
		},
	})
}

func logCNI(log logr.Logger, e cniinstall.Event) {
	log = log.WithValues("event", e.Kind, "path", e.Path)
	switch e.Kind {
	case cniinstall.Contended, cniinstall.Failed:
		log.Error(e.Err, "CNI plugin not installed")
	case cniinstall.OtherBinary:
		log.Error(e.Err, "CNI plugin of another version in use")
	case cniinstall.NotCalled:
		log.Error(e.Err, "CNI plugin not called by the container runtime")
	case cniinstall.Leftover:
		log.Error(e.Err, "CNI plugin still in the chain")
	case cniinstall.Removed:
		log.Info("CNI plugin taken out of the chain")
	case cniinstall.Waiting:
		log.Info("no network to chain the CNI plugin to yet", "reason", e.Err.Error())
	default:
		log.Info("CNI plugin installed")
	}
}

// nodeEvents returns a function that makes an event on the node for each CNI fault that its administrator has to correct.
func nodeEvents(recorder events.EventRecorder, name string) func(cniinstall.Event) {
	node := nodeRef(name)
	return func(e cniinstall.Event) {
		if slices.ContainsFunc(chainFaults(), func(f chainFault) bool { return f.kind == e.Kind }) {
			recorder.Eventf(node, nil, corev1.EventTypeWarning, chainReason+string(e.Kind), "InstallCNI", "%s: %v", e.Path, e.Err)
		}
	}
}

// nodeRef refers to a node in events. The UID is the node's name, as in the kubelet's own events: so they are listed with the node.
func nodeRef(name string) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}
