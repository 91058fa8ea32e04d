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
	"istio-pod-network-controller/runtime/cni/install"
)

// Chain says where the CNI configuration and binaries are, and how the plugin is configured.
type Chain struct {
	BinDir, ConfDir, Source string
	Plugin                  cni.Conf
}

// Installer returns an Installer, which puts the plugin into the chain and keeps it there. It logs each event, and passes it to
// notify, which may be nil.
func (c Chain) Installer(log logr.Logger, notify func(install.Event)) (*install.Installer, error) {
	entry, err := json.Marshal(c.Plugin)
	if err != nil {
		return nil, err
	}
	return install.New(install.Config{
		BinDir: c.BinDir, ConfDir: c.ConfDir, Source: c.Source, Entry: entry, Versions: cni.Versions(),
		Notify: func(e install.Event) {
			logCNI(log, e)
			if notify != nil {
				notify(e)
			}
		},
	})
}

func logCNI(log logr.Logger, e install.Event) {
	log = log.WithValues("event", e.Kind, "path", e.Path)
	switch e.Kind {
	case install.Contended, install.Failed:
		log.Error(e.Err, "CNI plugin not installed")
	case install.OtherBinary:
		log.Error(e.Err, "CNI plugin of another version in use")
	case install.NotCalled:
		log.Error(e.Err, "CNI plugin not called by the container runtime")
	case install.Leftover:
		log.Error(e.Err, "CNI plugin still in the chain")
	case install.Removed:
		log.Info("CNI plugin taken out of the chain")
	case install.Waiting:
		log.Info("no network to chain the CNI plugin to yet", "reason", e.Err.Error())
	default:
		log.Info("CNI plugin installed")
	}
}

// ChainReason starts the reasons of events about the node's CNI chain.
const ChainReason = "CNIChain"

// ChainFaults returns the faults of the node's CNI chain that become events, because the node's administrator has to correct them.
func ChainFaults() []install.EventKind {
	return []install.EventKind{install.Contended, install.Failed, install.Waiting, install.OtherBinary, install.NotCalled, install.Leftover}
}

// nodeEvents returns a function that makes an event on the node for each CNI fault that its administrator has to correct.
func nodeEvents(recorder events.EventRecorder, name string) func(install.Event) {
	node := nodeRef(name)
	return func(e install.Event) {
		if slices.Contains(ChainFaults(), e.Kind) {
			recorder.Eventf(node, nil, corev1.EventTypeWarning, ChainReason+string(e.Kind), "InstallCNI", "%s: %v", e.Path, e.Err)
		}
	}
}

// nodeRef refers to a node in events. The UID is the node's name, as in the kubelet's own events: so they are listed with the node.
func nodeRef(name string) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}
