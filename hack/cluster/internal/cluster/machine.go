package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kubeletSysctls are the settings of the whole machine that a kubelet changes.
func kubeletSysctls() []string {
	return []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	}
}

// readSysctls skips what this kernel does not have.
func readSysctls() (map[string]string, error) {
	values := map[string]string{}
	for _, key := range kubeletSysctls() {
		text, err := os.ReadFile(filepath.Join("/proc/sys", key))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the machine's settings: %w", err)
		}
		values[key] = strings.TrimSpace(string(text))
	}
	return values, nil
}

// restoreSysctls writes only what differs.
func restoreSysctls(saved map[string]string) error {
	for key, value := range saved {
		file := filepath.Join("/proc/sys", key)
		if now, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return fmt.Errorf("restore the machine's settings: %w", err)
		}
	}
	return nil
}

// loadBridgeFilter loads what lets kube-proxy see the packets of a bridge, where the kernel has it as a module.
func loadBridgeFilter() error {
	if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
		return nil
	}
	if out, err := exec.Command("/sbin/modprobe", "br_netfilter").CombinedOutput(); err != nil {
		return fmt.Errorf("load the kernel module br_netfilter: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
