package cli

import (
	"errors"

	"github.com/spf13/pflag"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/runtime/nri"
)

// addEntranceFlags adds the flags for NRI and the CNI chain, and for what happens to a pod whose rules cannot be applied when one of
// them calls.
func (o *runOptions) addEntranceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.NRI.Mode, "nri", agent.NRIAuto, "have the container runtime ask before a pod's first container: auto (where it has NRI), required or off")
	fs.StringVar(&o.NRI.Socket, "nri-socket", nri.DefaultSocket, "the runtime's NRI socket")
	fs.StringVar(&o.NRI.Name, "nri-name", nri.DefaultName, "the name by which the runtime knows its plugin")
	fs.StringVar(&o.NRI.Index, "nri-index", nri.DefaultIndex, "two digits by which the runtime orders its NRI plugins")
	fs.BoolVar(&o.FailOpen, "fail-open", false, "let pods start whose rules could not be applied in time; the pod watch tries again")
	fs.StringVar(&o.CNI, "cni", agent.CNIOff, "have the CNI chain ask before a pod's first container: off, install, or uninstall, which removes what install has left on the node")
	o.cniFlags.add(fs)
}

func (o *runOptions) validateEntrances() error {
	return errors.Join(
		oneOf("nri", o.NRI.Mode, agent.NRIAuto, agent.NRIRequired, agent.NRIOff),
		oneOf("cni", o.CNI, agent.CNIOff, agent.CNIInstall, agent.CNIUninstall), o.cniFlags.validate(),
	)
}
