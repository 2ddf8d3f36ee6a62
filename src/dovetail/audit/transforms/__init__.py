"""Pure transforms: DataFrame in, DataFrame out, ending in a select that lists the columns."""
