package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"istio-pod-network-controller/runtime/nri"
)

// What the agent does about the CNI chain.
const (
	cniModeOff     = "off"
	cniModeInstall = "install"
)

// entranceFlags say by which ways, beside the API server, the agent is told of sandboxes, and what happens to a pod whose
// rules cannot be programmed when it is told by one of them.
type entranceFlags struct {
	nri, nriSocket, nriName, nriIndex string
	failOpen                          bool
	cni                               string
	chain                             cniFlags
}

func (f *entranceFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.nri, "nri", "auto", "have the container runtime ask before a pod's first container: auto (where it has NRI), required or off")
	fs.StringVar(&f.nriSocket, "nri-socket", nri.DefaultSocket, "the runtime's NRI socket")
	fs.StringVar(&f.nriName, "nri-name", nri.DefaultName, "the name by which the runtime knows its plugin")
	fs.StringVar(&f.nriIndex, "nri-index", nri.DefaultIndex, "two digits by which the runtime orders its NRI plugins")
	fs.BoolVar(&f.failOpen, "fail-open", false, "let pods start whose rules could not be programmed in time; the watch repeats it")
	fs.StringVar(&f.cni, "cni", cniModeOff, "have the CNI chain ask before a pod's first container: off or install")
	f.chain.add(fs)
}

func (f *entranceFlags) validate() error {
	var errs []error
	switch f.nri {
	case "auto", "required", "off":
	default:
		errs = append(errs, fmt.Errorf("--nri: value %q: want auto, required or off", f.nri))
	}
	switch f.cni {
	case cniModeOff, cniModeInstall:
	default:
		errs = append(errs, fmt.Errorf("--cni: value %q: want off or install", f.cni))
	}
	return errors.Join(append(errs, f.chain.validate())...)
}
