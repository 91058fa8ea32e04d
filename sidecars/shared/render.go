package shared

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"istio-pod-network-controller/sidecars/profile"
)

const versionBytes = 8

// render returns a configuration for members, which has no directory yet, and its files. The version is a hash of them, in which the version itself
// is zeros: equal files have equal versions, whichever agent has rendered them.
func render(p *profile.Version, node string, members []member) (rec *record, files map[string]string, err error) {
	rec = &record{Hash: p.Hash, Spec: p.Spec, Members: ordered(members)}
	data := profile.SharedData{Node: node, Version: strings.Repeat("0", 2*versionBytes)}
	for _, m := range rec.Members {
		data.Pods = append(data.Pods, m.Data)
	}
	if files, err = profile.RenderShared(p, data); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(files)
	if err != nil {
		return nil, nil, fmt.Errorf("sum up files: %w", err)
	}
	sum := sha256.Sum256(text)
	rec.Version = hex.EncodeToString(sum[:versionBytes])
	data.Version = rec.Version
	files, err = profile.RenderShared(p, data)
	return rec, files, err
}

// whyNot says to a pod's owner why its data could not be rendered.
func whyNot(err error, others int) string {
	if errors.Is(err, profile.ErrTooLarge) {
		return fmt.Sprintf("the files for %d pods leave no room for this one: %v", others, err)
	}
	return err.Error()
}
