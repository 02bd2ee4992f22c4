package sysfs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jaypipes/pcidb"
)

// Names finds the names of vendors and products in the pci.ids file of this
// machine (package pci.ids on Debian, hwdata elsewhere). Without such a file,
// and for an id that it does not list, the id is the name. Nothing is fetched
// from the network.
//
// Names keeps only the names that were asked for: the whole database takes some
// tens of MB of memory.
type Names struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex        // guards the maps
	vendors  map[string]string // by vendor id; empty where the database has no name
	products map[string]string // by vendor id and product id
}

// NewNames returns the names from the pci.ids file at path. Where path is
// empty, pcidb looks in the usual places. The file is read when a name is
// needed for the first time.
func NewNames(path string, log *slog.Logger) *Names {
	return &Names{path: path, log: log, vendors: map[string]string{}, products: map[string]string{}}
}

// Fill sets the names of the functions. It never fails: without a database the
// ids are the names.
func (n *Names) Fill(ctx context.Context, functions []Function) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if err := n.lookUpNew(functions); err != nil {
		n.log.DebugContext(ctx, "PCI ids stand in for names", "error", err)
	}

	for i := range functions {
		f := &functions[i]
		f.VendorName, f.ProductName = n.vendors[f.Vendor], n.products[f.Vendor+f.Product]

		if f.VendorName == "" {
			f.VendorName = f.Vendor
		}
		if f.ProductName == "" {
			f.ProductName = f.Product
		}
	}
}

// Check returns an error where there is no database that can be read.
func (n *Names) Check() error {
	_, err := n.load()
	return err
}

// lookUpNew reads the database if it was not asked before for one of the
// functions.
func (n *Names) lookUpNew(functions []Function) error {
	known := true
	for _, f := range functions {
		_, vendor := n.vendors[f.Vendor]
		_, product := n.products[f.Vendor+f.Product]
		known = known && vendor && product
	}

	if known {
		return nil
	}

	db, err := n.load()
	if err != nil {
		return err
	}

	// An id without a name is recorded as well, so that it is not looked up again.
	for _, f := range functions {
		n.vendors[f.Vendor], n.products[f.Vendor+f.Product] = "", ""

		if vendor := db.Vendors[f.Vendor]; vendor != nil {
			n.vendors[f.Vendor] = vendor.Name
		}
		if product := db.Products[f.Vendor+f.Product]; product != nil {
			n.products[f.Vendor+f.Product] = product.Name
		}
	}

	return nil
}

// load reads the database. A damaged file makes pcidb panic, because it indexes
// into lines without checking their length; the panic becomes an error.
func (n *Names) load() (db *pcidb.DB, err error) {
	defer func() {
		if damage := recover(); damage != nil {
			db, err = nil, fmt.Errorf("the pci.ids file is damaged: %v", damage)
		}
	}()

	never := false
	options := &pcidb.WithOption{EnableNetworkFetch: &never}
	if n.path != "" {
		options.Path = &n.path
	}

	db, err = pcidb.New(options)
	if err != nil {
		return nil, fmt.Errorf("reading pci.ids: %w", err)
	}

	return db, nil
}
