package cri

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
)

const (
	// infoKey is the key under which both runtimes put their JSON into a verbose status.
	infoKey = "info"
	// crioHandler is the annotation of CRI-O's specs that names the runtime handler. Its status never does.
	crioHandler = "io.kubernetes.cri-o.RuntimeHandler"
	// maxPathBytes is PATH_MAX.
	maxPathBytes = 4096
)

// verboseInfo has the fields that we need of some 15 kB of JSON: containerd's SandboxInfo
// (internal/cri/server/podsandbox/types/sandbox_info.go) and CRI-O's createSandboxInfo (server/sandbox_status.go).
type verboseInfo struct {
	// PID is the pause process; 0 or absent in CRI-O, which by default has none.
	PID int64 `json:"pid"`
	// NetNSClosed is set by containerd: the namespace is already gone, the sandbox is being stopped.
	NetNSClosed bool `json:"netNamespaceClosed"`
	// RuntimeSpec is null in containerd until a sandbox is complete.
	RuntimeSpec *struct {
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			Namespaces []struct {
				Type string `json:"type"`
				Path string `json:"path"`
			} `json:"namespaces"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
	// Config is the kubelet's configuration, which only containerd repeats.
	Config struct {
		DNS struct {
			Servers []string `json:"servers"`
		} `json:"dns_config"`
	} `json:"config"`
}

// decodeInfo reads the free-form part of a verbose status.
func decodeInfo(info map[string]string) (verboseInfo, error) {
	var v verboseInfo
	raw, ok := info[infoKey]
	if !ok {
		return v, fmt.Errorf("the verbose status has no %q: not an answer of containerd or CRI-O", infoKey)
	}
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		return v, fmt.Errorf("decode verbose status: %w", err)
	}
	return v, nil
}

// handler returns the runtime class's handler, or "" for the runtime's default. CRI-O writes the pod's own annotations and labels over its own:
// a value that they have is not taken.
func (v *verboseInfo) handler(s *criv1.PodSandboxStatus) string {
	_, annotated := s.GetAnnotations()[crioHandler]
	_, labelled := s.GetLabels()[crioHandler]
	if h := s.GetRuntimeHandler(); h != "" || v.RuntimeSpec == nil || annotated || labelled {
		return h
	}
	return v.RuntimeSpec.Annotations[crioHandler]
}

// netNS returns the path of the network namespace. The path in the OCI spec is a bind mount that exists as long as the namespace.
// /proc/PID/ns/net is only the fallback, since it needs the host's process IDs.
func (v *verboseInfo) netNS() (string, error) {
	if v.NetNSClosed {
		return "", fmt.Errorf("its network namespace is closed: %w", podnet.ErrNotReady)
	}
	path, err := v.specPath()
	switch {
	case err != nil:
		return "", err
	case path != "":
		return path, nil
	}
	path, err = podnet.ProcessNetNS(v.PID)
	if err != nil {
		return "", fmt.Errorf("no network namespace in the verbose status: "+
			"runtimeSpec.linux.namespaces has no path of type network: %w", err)
	}
	return path, nil
}

// specPath returns the path of the spec's network namespace, or "" if the spec does not name one. A spec without a network entry
// means the runtime's own namespace, which is the host's
// (https://github.com/opencontainers/runtime-spec/blob/v1.2.1/config-linux.md#namespaces).
func (v *verboseInfo) specPath() (string, error) {
	if v.RuntimeSpec == nil {
		return "", nil
	}
	for _, ns := range v.RuntimeSpec.Linux.Namespaces {
		if ns.Type != "network" {
			continue
		}
		if ns.Path != "" && (!filepath.IsAbs(ns.Path) || strings.ContainsRune(ns.Path, 0) || len(ns.Path) > maxPathBytes) {
			return "", fmt.Errorf("the network namespace's path %.100q in runtimeSpec is not absolute and plain", ns.Path)
		}
		return ns.Path, nil
	}
	return "", fmt.Errorf("no network entry in runtimeSpec.linux.namespaces: %w", errHostNetwork)
}
