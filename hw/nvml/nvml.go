// Package nvml asks NVIDIA's management library, libnvidia-ml.so.1, what the CUDA driver does not tell: to which NVLink
// fabric a GPU belongs. The library is loaded at the first call. Where it is missing, too old or says no, nothing is known,
// which is no error.
package nvml

import "fmt"

// Fabric is a part of an NVLink fabric whose GPUs reach each other, whichever host they are in.
type Fabric struct {
	Cluster [16]byte // the fabric, a UUID
	Clique  uint32   // the part
}

// String is as "1a2b3c4d-0000-0000-0000-000000000001, clique 0", as nvidia-smi prints the UUID.
func (f Fabric) String() string {
	c := f.Cluster
	return fmt.Sprintf("%x-%x-%x-%x-%x, clique %d", c[:4], c[4:6], c[6:8], c[8:10], c[10:], f.Clique)
}

// FabricOf returns the fabric of the GPU at a PCI address, as cuda.Info.PCI has it. ok is false if the GPU belongs to none, has
// not joined it, or that is unknown. A fabric within one host, of GPUs that its fabric manager alone manages, has no UUID, and
// counts as none. Local, and safe for concurrent use.
func FabricOf(pci string) (f Fabric, ok bool) { return fabricOf(pci) }
